"""What opforge uses of torch that torch does not promise: the code generator's and the tracer's insides."""
