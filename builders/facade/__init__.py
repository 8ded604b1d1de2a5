"""Headers with the names of torch's C++ API over its stable ABI, and what a build with them needs."""
