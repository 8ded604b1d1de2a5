"""The private parts of torch that opforge uses: the code generator's and the tracer's."""
