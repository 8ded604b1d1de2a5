// pybind11/chrono.h: durations and points in time as Python's timedelta and datetime.
#pragma once
#pragma GCC system_header
#include <chrono>
#include <ctime>

#include "objects.h"

namespace opforge_facade_python {
using Microseconds = std::chrono::microseconds;
inline Ref time_type(const char* name) { return attribute(imported("datetime").get(), name); }
inline bool is_time(PyObject* o, const char* type) {
    const int found = opforge_PyObject_IsInstance(o, time_type(type).get());
    checked(found);
    return found == 1;
}
inline long long time_field(PyObject* o, const char* name) {
    const long long value = opforge_PyLong_AsLongLong(attribute(o, name).get());
    if (value == -1 && opforge_PyErr_Occurred()) {
        throw Raised();
    }
    return value;
}
template <class D>
struct ConvertDuration {
    static bool load(PyObject* o, bool, D& value) {
        using std::chrono::duration_cast;
        if (is_time(o, "timedelta")) {
            value = duration_cast<D>(std::chrono::hours(24 * time_field(o, "days")) +
                                     std::chrono::seconds(time_field(o, "seconds")) +
                                     Microseconds(time_field(o, "microseconds")));
            return true;
        }
        if (is(o, &opforge_PyFloat_Type)) {
            value = duration_cast<D>(std::chrono::duration<double>(opforge_PyFloat_AsDouble(o)));
            return true;
        }
        return false;
    }
    static Ref cast(const D& value) {
        const long long all = std::chrono::duration_cast<Microseconds>(value).count();
        return called(time_type("timedelta").get(), Convert<int>::cast(0), Convert<int>::cast(0),
                      Convert<long long>::cast(all));
    }
    static std::string name(bool) { return "datetime.timedelta"; }
};
template <class R, class P>
struct Convert<std::chrono::duration<R, P>> : ConvertDuration<std::chrono::duration<R, P>> {};
// A clock without a calendar: the time since its begin.
template <class C, class D>
struct Convert<std::chrono::time_point<C, D>> {
    using Point = std::chrono::time_point<C, D>;
    static bool load(PyObject* o, bool convert, Point& value) {
        D since{};
        if (!ConvertDuration<D>::load(o, convert, since)) {
            return false;
        }
        value = Point(since);
        return true;
    }
    static Ref cast(const Point& value) { return ConvertDuration<D>::cast(value.time_since_epoch()); }
    static std::string name(bool argument) { return ConvertDuration<D>::name(argument); }
};
// The clock of the system: local time.
template <class D>
struct Convert<std::chrono::time_point<std::chrono::system_clock, D>> {
    using Point = std::chrono::time_point<std::chrono::system_clock, D>;
    static bool load(PyObject* o, bool, Point& value) {
        const bool is_moment = is_time(o, "datetime"), is_day = is_moment || is_time(o, "date");
        if (!is_day && !is_time(o, "time")) {
            return false;
        }
        std::tm local{};
        local.tm_isdst = -1;
        local.tm_mday = is_day ? static_cast<int>(time_field(o, "day")) : 1;
        local.tm_mon = is_day ? static_cast<int>(time_field(o, "month")) - 1 : 0;
        local.tm_year = is_day ? static_cast<int>(time_field(o, "year")) - 1900 : 70;
        Microseconds part(0);
        if (is_moment || !is_day) {
            local.tm_hour = static_cast<int>(time_field(o, "hour"));
            local.tm_min = static_cast<int>(time_field(o, "minute"));
            local.tm_sec = static_cast<int>(time_field(o, "second"));
            part = Microseconds(time_field(o, "microsecond"));
        }
        value = std::chrono::time_point_cast<D>(std::chrono::system_clock::from_time_t(std::mktime(&local)) + part);
        return true;
    }
    static Ref cast(const Point& value) {
        const auto all = std::chrono::floor<Microseconds>(value.time_since_epoch());
        const auto seconds = std::chrono::floor<std::chrono::seconds>(all);
        const std::time_t time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::time_point(seconds));
        std::tm local{};
        localtime_r(&time, &local);
        auto number = [](long long n) { return Convert<long long>::cast(n); };
        return called(time_type("datetime").get(), number(local.tm_year + 1900), number(local.tm_mon + 1),
                      number(local.tm_mday), number(local.tm_hour), number(local.tm_min), number(local.tm_sec),
                      number((all - seconds).count()));
    }
    static std::string name(bool) { return "datetime.datetime"; }
};
}  // namespace opforge_facade_python
