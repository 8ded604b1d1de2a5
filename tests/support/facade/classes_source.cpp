// Classes and enumerations of a module. class_cases.py uses them; what torch's own headers gave is recorded.
#include <torch/extension.h>

#include <pybind11/operators.h>

#include <memory>
#include <thread>

enum class Color { Red = 1, Green = 2, Blue = -3 };
enum Mask : unsigned { None = 0, First = 1, Second = 2 };

int alive = 0;
struct Counted {
    Counted() { ++alive; }
    Counted(const Counted&) { ++alive; }
    ~Counted() { --alive; }
};

struct Point : Counted {
    Point(double x, double y) : x(x), y(y) {}
    double norm() const { return x * x + y * y; }
    void move(double dx, double dy) {
        x += dx;
        y += dy;
    }
    bool operator==(const Point& other) const { return x == other.x && y == other.y; }
    double x, y;
    int kind = 7;
};

struct Base : Counted {
    virtual ~Base() = default;
    virtual std::string name() const { return "base"; }
    int number() const { return 1; }
};
struct Derived : Base {
    std::string name() const override { return "derived"; }
    int other() { return 2; }
};
std::shared_ptr<Base> make_derived() { return std::make_shared<Derived>(); }

struct Layer : Counted {
    Layer(torch::Tensor weight, Color color, int64_t n) : weight(std::move(weight)), color(color), n(n), origin(0, 0) {
        TORCH_CHECK(n > 0, "n must be positive, got ", n);
    }
    torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
    int64_t scaled(int64_t by) { return n * by; }
    double scaled(double by) { return static_cast<double>(n) * by; }
    Point& where() { return origin; }
    torch::Tensor weight;
    Color color;
    int64_t n;
    Point origin;
};
struct Held : std::enable_shared_from_this<Held>, Counted {
    std::shared_ptr<Held> self() { return shared_from_this(); }
    std::shared_ptr<Held> next;
};
struct Owner : Counted {
    Held* raw() { return &held; }
    Held held;
};
struct Bare : Counted {};
struct Unknown {};

struct Sum : Counted {
    explicit Sum(int n) : n(n) {}
    int get() const noexcept { return n; }
    void put(int m) noexcept { n = m; }
    Sum operator+(const Sum& o) const { return Sum(n + o.n); }
    Sum operator-(int m) const { return Sum(n - m); }
    double operator*(double x) const { return n * x; }
    Sum operator-() const { return Sum(-n); }
    bool operator!() const { return n == 0; }
    Sum& operator+=(int m) {
        n += m;
        return *this;
    }
    bool operator==(const Sum& o) const { return n == o.n; }
    bool operator<(const Sum& o) const { return n < o.n; }
    operator int() const { return n; }
    int n;
};
Sum operator-(int m, const Sum& s) { return Sum(m - s.n); }
struct Spot : Counted {
    int n = 1;
    Spot* self() { return this; }
};
Spot* spot = nullptr;
std::shared_ptr<Held> stored;
struct Quiet : Base {
    int third() { return 3; }
};
struct Loose : Counted {};
struct Looser : Loose {};
struct Mute {};

double norm_of(const Point& p) { return p.norm(); }
double norm_or(const Point* p) { return p ? p->norm() : -1; }
Point moved(Point p, double by) {
    p.move(by, by);
    return p;
}
void shift(Point& p) { p.x += 10; }
std::string name_of(const Base& b) { return b.name(); }
std::vector<std::shared_ptr<Held>> pair_of(std::shared_ptr<Held> h) { return {h, h}; }

// Without a default constructor, and its methods return the object itself.
struct Chain {
    explicit Chain(int first) : parts{first} {}
    Chain& add(int part) {
        parts.push_back(part);
        return *this;
    }
    std::vector<int> parts;
};
static size_t length_of(const std::vector<Chain>& all, const std::optional<Chain>& one,
                        const std::map<std::string, Chain>& named) {
    size_t n = one ? one->parts.size() : 0;
    for (const auto& chain : all) {
        n += chain.parts.size();
    }
    for (const auto& entry : named) {
        n += entry.second.parts.size();
    }
    return n;
}
static py::object extended(py::object o, int part) {
    if (py::isinstance<Chain>(o)) {
        o.cast<Chain&>().add(part);
        o.cast<Chain*>()->add(part + 1);
        return py::cast(o.cast<Chain>().parts);
    }
    return py::cast(o.cast<Chain*>() == nullptr);
}

// Properties of a class itself, and a class that other objects become.
struct Setting {
    static int total;
    int n;
    explicit Setting(int value) : n(value) {}
    explicit Setting(const std::string& text) : n(static_cast<int>(text.size())) {}
};
int Setting::total = 5;
// Classes whose methods Python overrides.
struct Animal : Counted {
    explicit Animal(std::string kept = "label") : kept(std::move(kept)) {}
    virtual ~Animal() = default;
    virtual std::string go(int times) = 0;
    virtual std::string name() const { return "animal"; }
    virtual const std::string& label() const { return kept; }
    virtual torch::Tensor map(const torch::Tensor& x) { return x + 1; }
    virtual void seen(const Point& at, Point* other) { last = at.x + (other ? other->x : 0); }
    std::string kept;
    double last = 0;
};
template <class B = Animal>
struct PyAnimal : B {
    using B::B;
    explicit PyAnimal(B&& other) : B(std::move(other)) {}
    std::string go(int times) override { PYBIND11_OVERRIDE_PURE(std::string, B, go, times); }
    std::string name() const override { PYBIND11_OVERRIDE_NAME(std::string, B, "its_name", name, ); }
    const std::string& label() const override { PYBIND11_OVERRIDE(const std::string&, B, label, ); }
    torch::Tensor map(const torch::Tensor& x) override { PYBIND11_OVERRIDE(torch::Tensor, B, map, x); }
    void seen(const Point& at, Point* other) override { PYBIND11_OVERRIDE(void, B, seen, at, other); }
};
struct Dog : Animal {
    explicit Dog(int n) : n(n) {}
    std::string go(int times) override { return std::string(static_cast<size_t>(times), 'w'); }
    int n;
};
struct PyDog : PyAnimal<Dog> {
    using PyAnimal<Dog>::PyAnimal;
    std::string go(int times) override { PYBIND11_OVERLOAD(std::string, Dog, go, times); }
};
struct Cat : Animal {
    std::string go(int) override { return "meow"; }
};
struct PyCat : PyAnimal<Cat> {
    PyCat() = default;
    std::string go(int times) override { PYBIND11_OVERRIDE(std::string, Cat, go, times); }
};
static void overridden(py::module_& m) {
    py::class_<Animal, PyAnimal<>, std::shared_ptr<Animal>>(m, "Animal")
        .def(py::init<>())
        .def(py::init<std::string>())
        .def("go", &Animal::go)
        .def("its_name", &Animal::name)
        .def("label", &Animal::label)
        .def("map", &Animal::map)
        .def("seen", &Animal::seen)
        .def_readonly("last", &Animal::last);
    py::class_<Dog, Animal, PyDog, std::shared_ptr<Dog>>(m, "Dog")
        .def(py::init<int>())
        .def(py::init([](const std::string& text) { return Dog(static_cast<int>(text.size())); }))
        .def(py::init([](double n) { return std::make_shared<Dog>(static_cast<int>(n)); }))
        .def_readonly("n", &Dog::n);
    py::class_<Cat, PyCat, Animal, std::shared_ptr<Cat>>(m, "Cat")
        .def(py::init_alias<>())
        .def(py::init([](int) { return new Cat(); }, [](int) { return new PyCat(); }))
        .def(py::init([](const std::string&) { return std::make_unique<Cat>(); }));
    m.def("go", [](Animal& animal, int times) { return animal.go(times) + "!"; });
    m.def("name", [](const Animal& animal) { return animal.name(); });
    m.def("label", [](const Animal& animal) { return animal.label(); });
    m.def("map", [](Animal& animal, const torch::Tensor& x) { return animal.map(x); });
    m.def("seen", [](Animal& animal, bool both) {
        Point at(1, 2), other(5, 6);
        animal.seen(at, both ? &other : nullptr);
        return std::make_pair(animal.last, other.y);
    });
    m.def("goes_elsewhere", [](std::shared_ptr<Animal> animal) {
        std::string found;
        py::gil_scoped_release release;
        std::thread([&] { found = animal->go(2); }).join();
        return found;
    });
    m.def("is_alias", [](const Animal& animal) { return dynamic_cast<const PyCat*>(&animal) != nullptr; });
    // A pointer is not owned by the object that Python gets of it.
    m.def("pointed", [](const py::function& f) {
        Point at(1, 2);
        f(&at);
        py::cast(&at);
        py::cast(at, py::return_value_policy::reference).attr("x") = 9;
        py::cast(at).attr("y") = 9;
        return std::make_pair(at.x, at.y);
    });
    m.def("owning", [] { return py::cast(std::make_unique<Point>(3, 4)); });
    m.def("given", [] { return py::cast(new Point(3, 4), py::return_value_policy::take_ownership); });
}
static void settings(py::module_& m) {
    py::class_<Setting, std::shared_ptr<Setting>> setting(m, "Setting");
    setting.def(py::init<int>()).def(py::init<std::string>()).def_readonly("n", &Setting::n);
    setting.def_readwrite_static("total", &Setting::total).def_readonly_static("fixed", &Setting::total);
    setting.def_property_static(
        "twice", [](const py::object&) { return Setting::total * 2; },
        [](const py::object&, int value) { Setting::total = value / 2; });
    setting.def_property_readonly_static("kind", [](const py::object& type) { return type.attr("__name__"); });
    py::implicitly_convertible<int, Setting>();
    py::implicitly_convertible<py::str, Setting>();
    m.def("set", [](const Setting& s) { return s.n; });
    m.def("set_pointer", [](const Setting* s) { return s ? s->n : -1; });
    m.def("set_shared", [](const std::shared_ptr<Setting>& s) { return s ? s->n : -1; });
    m.def("set_list", [](const std::vector<std::shared_ptr<Setting>>& list) { return list.back()->n; });
    m.def("set_fixed", [](const Setting& s) { return s.n; }, py::arg("s").noconvert());
    m.def("set_first", [](const Setting& s) { return s.n; });
    m.def("set_first", [](double x) { return x; });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    settings(m);
    py::enum_<Color>(m, "Color", "A color.")
        .value("Red", Color::Red)
        .value("Green", Color::Green, "the second")
        .value("Blue", Color::Blue)
        .export_values();
    py::enum_<Mask>(m, "Mask", py::arithmetic()).value("None_", None).value("First", First).value("Second", Second);
    py::class_<Point>(m, "Point", "A point.")
        .def(py::init<double, double>(), py::arg("x"), py::arg("y") = 0.5)
        .def(py::init([](int64_t n) { return Point(static_cast<double>(n), -1); }))
        .def("norm", &Point::norm, "The norm.")
        .def("move", &Point::move, py::arg("dx"), py::arg("dy") = 1)
        .def_readwrite("x", &Point::x)
        .def_readwrite("y", &Point::y, "The second.")
        .def_readonly("kind", &Point::kind)
        .def_property_readonly("twice", [](const Point& p) { return Point(2 * p.x, 2 * p.y); })
        .def_property(
            "sum", [](const Point& p) { return p.x + p.y; },
            [](Point& p, double v) {
                if (v < 0) {
                    throw py::value_error("negative");
                }
                p.x = v - p.y;
            })
        .def_static("origin", [] { return Point(0, 0); })
        .def("__repr__", [](const Point& p) { return "Point(" + std::to_string(static_cast<int>(p.x)) + ")"; })
        .def(
            "__eq__", [](const Point& a, const Point& b) { return a == b; }, py::is_operator())
        .def("__len__", [](const Point&) { return 2; });
    py::class_<Base, std::shared_ptr<Base>>(m, "Base")
        .def(py::init<>())
        .def("name", &Base::name)
        .def("number", &Base::number);
    py::class_<Derived, Base, std::shared_ptr<Derived>>(m, "Derived").def(py::init<>()).def("other", &Derived::other);
    py::class_<Layer> layer(m, "Layer", py::dynamic_attr());
    layer
        .def(py::init<torch::Tensor, Color, int64_t>(), py::arg("weight"), py::arg("color") = Color::Red,
             py::arg("n") = 1)
        .def("forward", &Layer::forward)
        .def("__call__", &Layer::forward)
        .def("scaled", py::overload_cast<int64_t>(&Layer::scaled))
        .def("scaled", py::overload_cast<double>(&Layer::scaled))
        .def("where", &Layer::where, py::return_value_policy::reference_internal)
        .def("copied", &Layer::where)
        .def_readwrite("weight", &Layer::weight)
        .def_readwrite("color", &Layer::color)
        .def_readwrite("origin", &Layer::origin);
    layer.attr("version") = 3;
    py::class_<Held, std::shared_ptr<Held>>(m, "Held")
        .def(py::init<>())
        .def("self", &Held::self)
        .def_readwrite("next", &Held::next);
    py::class_<Owner>(m, "Owner")
        .def(py::init<>())
        .def("raw", &Owner::raw, py::return_value_policy::reference_internal)
        .def_readonly("held", &Owner::held);
    py::class_<Bare>(m, "Bare");
    py::class_<Chain>(m, "Chain")
        .def(py::init<int>())
        .def("add", &Chain::add)
        .def_readonly("parts", &Chain::parts)
        .def(py::pickle([](const Chain& c) { return py::make_tuple(c.parts); },
                        [](py::tuple state) {
                            Chain made(0);
                            made.parts = state[0].cast<std::vector<int>>();
                            return made;
                        }));
    m.def("length_of", &length_of);
    m.def("extended", &extended);
    m.def("owned_chain", [](int part) { return part ? std::make_unique<Chain>(part) : nullptr; });
    m.def("norm_of", &norm_of);
    m.def("norm_or", &norm_or);
    m.def("moved", &moved);
    m.def("shift", &shift);
    m.def("name_of", &name_of);
    m.def("make_derived", &make_derived);
    m.def("pair_of", &pair_of);
    m.def("of_color", [](Color c) { return static_cast<int>(c); });
    m.def("color", [](int n) { return static_cast<Color>(n); });
    m.def("points", [](const std::vector<std::shared_ptr<Held>>& all) { return all.size(); });
    m.def("unknown", [](const Unknown&) {});
    m.def("make_unknown", [] { return Unknown(); });
    m.def("new_held", []() -> Held* { return new Held(); });
    m.def("nothing", []() -> Held* { return nullptr; });
    m.def("alive", [] { return alive; });
    py::class_<Quiet, Base, std::shared_ptr<Quiet>>(m, "Quiet").def("third", &Quiet::third);
    py::class_<Loose>(m, "Loose", py::dynamic_attr()).def(py::init<>());
    py::class_<Looser, Loose>(m, "Looser", py::dynamic_attr()).def(py::init<>());
    py::class_<Mute>(m, "Mute").def(py::init<>()).def("__repr__", [](const Mute&) -> std::string {
        throw std::runtime_error("no repr");
    });
    py::class_<Sum>(m, "Sum")
        .def(py::init<int>())
        .def("get", &Sum::get)
        .def("put", &Sum::put)
        .def_property("n", &Sum::get, &Sum::put)
        .def(py::self + py::self, "Adds.")
        .def(py::self - int())
        .def(int() - py::self)
        .def(py::self * double())
        .def(-py::self)
        .def(!py::self)
        .def(py::self += int())
        .def(py::self == py::self)
        .def(py::self < py::self)
        .def(int_(py::self))
        .def("__repr__", [](const Sum& s) { return "Sum(" + std::to_string(s.n) + ")"; });
    py::class_<Spot>(m, "Spot").def(py::init<>()).def("self", &Spot::self).def_readwrite("n", &Spot::n);
    m.def("spot", [] { return spot = new Spot(); }, py::return_value_policy::reference);
    m.def("end_spot", [] { delete spot; });
    m.def("store", [](std::shared_ptr<Held> held) { stored = std::move(held); });
    m.def("stored", [] { return stored; });
    m.def("stored_raw", []() -> Held* { return stored.get(); });
    m.def("stored_count", [] { return stored.use_count(); });
    m.def("length", [](const char* text) { return text ? static_cast<int64_t>(strlen(text)) : -1; });
    m.def("text", [](bool none) -> const char* { return none ? nullptr : "text"; });
    m.def("is_none", [](py::handle thing) { return thing.is_none(); });
    m.def("placed", [](int a, int b) { return a - b; }, py::arg("a"), py::pos_only(), py::arg("b") = 1);
    m.def("all_placed", [](int a) { return a; }, py::arg("a"), py::pos_only());
    overridden(m);
    if (std::getenv("FACADE_CLASSES_FAIL")) {
        m.def("too_early", [](const Unknown&) {}, py::arg("given") = Unknown());
    }
}
