// Ops and entries of c10::Dict, as torch-sparse writes them.
#include <torch/extension.h>
#include <torch/script.h>

using Tensors = c10::Dict<std::string, at::Tensor>;

// Each key with the sum of its tensor and of its numbers, in the order of the first, and the keys alone.
std::tuple<Tensors, c10::Dict<std::string, int64_t>, std::vector<std::string>> joined(
    const Tensors& tensors, const c10::Dict<std::string, std::vector<int64_t>>& numbers, int64_t more,
    std::optional<at::Tensor> weight) {
    Tensors sums;
    c10::Dict<std::string, int64_t> counts;
    std::vector<std::string> keys;
    for (const auto& entry : tensors) {
        const auto& key = entry.key();
        at::Tensor sum = entry.value().sum();
        for (int64_t number : numbers.at(key)) {
            sum = sum + number;
        }
        sums.insert(key, weight ? sum * *weight : sum);
        counts.insert(key, static_cast<int64_t>(numbers.at(key).size()) + more);
        keys.push_back(key);
    }
    return {sums, counts, keys};
}
at::Tensor total(const c10::Dict<int64_t, at::Tensor>& tensors) {
    TORCH_CHECK(!tensors.empty(), "no tensors");
    at::Tensor sum = at::zeros({});
    for (const auto& entry : tensors) {
        sum = sum + entry.key() * entry.value();
    }
    return sum;
}
std::string named(std::tuple<std::string, int64_t> first, const std::vector<std::tuple<std::string, bool>>& more) {
    std::string text = std::get<0>(first) + std::to_string(std::get<1>(first));
    for (const auto& [name, flag] : more) {
        text += name + (flag ? "+" : "-");
    }
    return text;
}
static auto registry =
    torch::RegisterOperators()
        .op("facade_dictionaries::joined", &joined)
        .op("facade_dictionaries::named", &named)
        .op("facade_dictionaries::total", [](c10::Dict<int64_t, at::Tensor> tensors) { return total(tensors); });
TORCH_LIBRARY_FRAGMENT(facade_dictionaries, m) {
    m.def("stated(Dict(str, Tensor) tensors, Tensor x) -> Dict(str, Tensor)");
}
Tensors stated(Tensors tensors, const at::Tensor& x) {
    tensors.insert_or_assign("x", x);
    return tensors;
}
TORCH_LIBRARY_IMPL(facade_dictionaries, CPU, m) { m.impl("stated", &stated); }

// What the functions of a dictionary give, as text.
std::string entries() {
    std::ostringstream out;
    c10::Dict<std::string, int64_t> d;
    const auto shared = d;
    out << d.insert("b", 1).second << d.insert("a", 2).second << d.insert("b", 3).second << " ";
    out << d.insert_or_assign("b", 4).second << d.insert_or_assign("c", 5).second << " ";
    for (auto at = shared.begin(); at != shared.end(); ++at) {
        out << at->key() << at->value();
    }
    auto other = d.copy();
    d.find("a")->setValue(9);
    out << " " << d.erase("b") << d.erase("b") << d.contains("a") << (d.find("z") == d.end()) << d.is(shared)
        << d.is(other) << " " << d.at("a") << other.at("a") << d.size() << other.size();
    d.reserve(9);
    d.erase(d.begin());
    out << " " << (*d.begin()).key();
    d.clear();
    out << d.empty() << other.empty();
    return out.str();
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("entries", &entries); }
