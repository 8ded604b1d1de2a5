"""The ops of OpenCL devices, by the names that `create_op_builder` takes. The host's ops are offered too."""

BUILDERS = {
    "OpenCLAdamBuilder": "opforge_opencl.builders.adam:OpenCLAdamBuilder",
    "OpenCLSoftmaxBuilder": "opforge_opencl.builders.softmax:OpenCLSoftmaxBuilder",
}
