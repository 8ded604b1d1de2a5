"""The CMake package for `find_package(opforge)`: `opforgeConfig.cmake`, beside this file, and the code that it runs.

scikit-build-core finds the folder by an entry point; elsewhere: cmake -Dopforge_ROOT="$(python -m opforge.cmake)".
"""
