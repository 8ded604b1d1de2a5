// One work group a row: finds the greatest value, sums the exponentials, and divides each by the sum.
__kernel void softmax(__global const float* x, __global float* y, const ulong columns, __local float* shared) {
    const size_t lane = get_local_id(0), lanes = get_local_size(0);
    __global const float* from = x + get_group_id(0) * columns;
    __global float* to = y + get_group_id(0) * columns;

    float greatest = -INFINITY;
    for (size_t i = lane; i < columns; i += lanes) greatest = fmax(greatest, from[i]);
    shared[lane] = greatest;
    for (size_t half_way = lanes / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_way) shared[lane] = fmax(shared[lane], shared[lane + half_way]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    greatest = shared[0];
    barrier(CLK_LOCAL_MEM_FENCE);  // all items must read it before it is overwritten

    float sum = 0.0f;
    for (size_t i = lane; i < columns; i += lanes) {
        to[i] = exp(from[i] - greatest);
        sum += to[i];
    }
    shared[lane] = sum;
    for (size_t half_way = lanes / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_way) shared[lane] += shared[lane + half_way];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t i = lane; i < columns; i += lanes) to[i] /= shared[0];
}
