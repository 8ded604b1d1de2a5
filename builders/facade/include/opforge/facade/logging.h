// LOG, VLOG and CHECK of c10's logging: lines on standard error, from the level of TORCH_CPP_LOG_LEVEL on.
#pragma once
#include <ctime>

#include "errors.h"

namespace c10 {
inline namespace opforge_facade {
constexpr int GLOG_INFO = 0, GLOG_WARNING = 1, GLOG_ERROR = 2, GLOG_FATAL = 3;
namespace facade {
OPFORGE_IF_USED int log_level() {
    static const int level = [] {
        const char* given = std::getenv("TORCH_CPP_LOG_LEVEL");
        const std::string text = given ? given : "";
        const char* names[] = {"INFO", "WARNING", "ERROR", "FATAL"};
        for (int i = GLOG_INFO; i <= GLOG_FATAL; ++i) {
            if (text == names[i] || text == std::to_string(i)) {
                return i;
            }
        }
        return GLOG_WARNING;
    }();
    return level;
}
}  // namespace facade
template <int Used = 0>
class BasicMessageLogger {
public:
    BasicMessageLogger(const char* path, int line, int severity) : severity_(severity) {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now);
        const std::time_t time = static_cast<std::time_t>(seconds.count());
        std::tm local;
        localtime_r(&time, &local);
        const char* slash = std::strrchr(path, '/');
        stream_ << '[' << (severity < 0 ? 'V' : "IWEF"[severity]) << std::put_time(&local, "%m%d %H:%M:%S.")
                << std::setfill('0') << std::setw(9) << std::chrono::nanoseconds(now - seconds).count()
                << std::setfill(' ') << ' ' << (slash ? slash + 1 : path) << ':' << line << "] ";
    }
    ~BasicMessageLogger() {
        if (severity_ >= facade::log_level()) {
            stream_ << '\n';
            std::cerr << stream_.str() << std::flush;
        }
        if (severity_ == GLOG_FATAL) {
            std::abort();
        }
    }
    std::stringstream& stream() { return stream_; }

private:
    std::stringstream stream_;
    int severity_;
};
using MessageLogger = BasicMessageLogger<>;
struct LoggerVoidify {
    void operator&(const std::ostream&) {}
};
}  // namespace opforge_facade
}  // namespace c10

#define OPFORGE_LOG(severity) ::c10::MessageLogger(__FILE__, __LINE__, severity).stream()
#define LOG(n) OPFORGE_LOG(::c10::GLOG_##n)
#define LOG_IF(n, condition) \
    if (condition) LOG(n)
#define VLOG(n) OPFORGE_LOG(-(n))
#define VLOG_IF(n, condition) \
    if (condition) VLOG(n)
#define VLOG_IS_ON(n) true
#define FATAL_IF(condition) (condition) ? (void)0 : ::c10::LoggerVoidify() & LOG(FATAL)
#define CHECK(condition) FATAL_IF(condition) << "Check failed: " #condition " "
#ifdef NDEBUG
#define DCHECK(condition) \
    while (false) CHECK(condition)
#define DLOG(n) true ? (void)0 : ::c10::LoggerVoidify() & LOG(n)
#else
#define DCHECK(condition) CHECK(condition)
#define DLOG(n) LOG(n)
#endif
