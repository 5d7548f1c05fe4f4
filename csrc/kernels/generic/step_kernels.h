// Included inside `namespace octavo::<isa> {` after step_attention.h: no include, no namespace here. The table.

const StepKernels step_kernels = {
    .rms_norm = rms_norm,
    .rope = rope,
    .gated = gated,
    .add = add_rows,
    .softcap = softcap,
    .write_kv = write_kv,
    .attend = attend,
    .merge = merge,
    .finish = finish,
    .greatest = greatest,
    .find = find,
    .exp_sum = exp_sum,
    .count_greater = count_greater,
    .collect_greater = collect_greater,
};
