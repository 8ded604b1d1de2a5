"""What CMake finds by `find_package(opforge)`: `opforgeConfig.cmake`, beside this file, and what that runs.

scikit-build-core finds the folder by an entry point; elsewhere: cmake -Dopforge_ROOT="$(python -m opforge.cmake)".
"""
