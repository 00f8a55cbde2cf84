//! A world of one in which NCCL or the driver fails.

use super::place::{Folder, library_vars, run_scene, run_scene_with};

/// The milliseconds that something took.
fn milliseconds_of(output: &str, what: &str) -> u64 {
    let line = output.lines().find_map(|line| line.strip_prefix(&format!("{what} took ")));
    let number = line.and_then(|rest| rest.strip_suffix(" ms"));
    number.unwrap_or_else(|| panic!("no `{what}` in: {output}")).parse().unwrap()
}

/// Everything but the times.
fn lines(output: &str) -> Vec<&str> {
    output.lines().filter(|line| !line.ends_with(" ms")).collect()
}

#[test]
fn single_rank_world_runs_every_operation_and_type() {
    for orders in ["", "slow=3"] {
        let output = run_scene_with("world of one", orders);
        let expected = [
            "`ncclBroadcast` needs 0 bytes, but the call passes 3",
            "`ncclCommGetAsyncError` cannot be called: the communicator is aborted",
            "fine",
        ];
        assert_eq!(lines(&output), expected);
    }
}

#[test]
fn awaited_stream_is_not_used_again() {
    assert_eq!(run_scene_with("streams", ""), "fine");
}

#[test]
fn wrong_memory_kind_is_refused() {
    let output = run_scene_with("wrong memory", "");
    let expected = [
        "`all_reduce` gets host memory, but this group accepts only device memory (backend `nccl`) \
         [hint: call `run_on_device`, or join a second group for host memory with `tcp` or `shm`]",
        "`all_reduce` gets device memory, but this group accepts only host memory (backend `memory`) \
         [hint: join the group with the backend `nccl`, or copy the data to the host first]",
    ];
    assert_eq!(lines(&output), expected);
}

#[test]
fn hung_collective_ends_at_deadline() {
    let output = run_scene_with("one call", "stuck=1");
    let expected = "`all_reduce` cannot finish: on rank 0: call 1, `all_reduce` (sum) of 1000 f32 is not done within \
                    400ms, although every rank has made this call";
    assert_eq!(lines(&output), [expected, expected]);
    assert!((400..3000).contains(&milliseconds_of(&output, "call")), "{output}");
}

#[test]
fn hung_library_call_is_aborted_at_deadline() {
    let output = run_scene_with("one call", "hang=ncclAllReduce");
    assert_eq!(lines(&output).len(), 2);
    assert!(lines(&output).iter().all(|line| line.contains("is not done within 400ms")), "{output}");
    assert!((400..3000).contains(&milliseconds_of(&output, "call")), "{output}");
}

#[test]
fn in_progress_call_is_aborted_at_deadline() {
    let output = run_scene_with("one call", "busy=1");
    assert!(lines(&output).iter().all(|line| line.contains("not done within 400ms")), "{output}");
    assert!((400..3000).contains(&milliseconds_of(&output, "call")), "{output}");
}

#[test]
fn async_error_ends_group() {
    let output = run_scene_with("one call", "async=6 stuck=1");
    let expected = "`all_reduce` cannot finish: on rank 0: `ncclCommGetAsyncError` failed: another rank ended or the \
                    network failed (ncclRemoteError, 6): fake.cc:1 the fake was told to fail";
    assert_eq!(lines(&output), [expected, expected]);
}

#[test]
fn refused_call_ends_group() {
    let output = run_scene_with("one call", "fail=ncclAllReduce:5");
    let expected = "`all_reduce` cannot finish: on rank 0: `ncclAllReduce` failed: an invalid usage \
                    (ncclInvalidUsage, 5): fake.cc:1 the fake was told to fail";
    assert_eq!(lines(&output), [expected, expected]);
    let output = run_scene_with("one call", "fail=ncclAllReduce:99:2");
    assert_eq!(lines(&output)[0], "done");
    assert!(
        lines(&output)[1].contains("an error code that this program does not know (unknown, 99)"),
        "{output}"
    );
}

#[test]
fn device_failure_ends_group() {
    let output = run_scene_with("one call", "fail=cuEventQuery:700 stuck=1");
    assert!(
        lines(&output)[0]
            .contains("refused `cuEventQuery`: an illegal memory access was encountered (error 700)"),
        "{output}"
    );
    let output = run_scene_with("one call", "fail=cuStreamQuery:700");
    assert!(
        lines(&output)[0]
            .contains("refused `cuStreamQuery`: an illegal memory access was encountered (error 700)"),
        "{output}"
    );
    let output = run_scene_with("one call", "fail=cuEventRecord:700");
    assert!(
        lines(&output)[0]
            .contains("refused `cuEventRecord`: an illegal memory access was encountered (error 700)"),
        "{output}"
    );
}

#[test]
fn abort_that_never_returns_delays_no_caller() {
    let output = run_scene_with("one call", "stuck=1 freeze=ncclCommAbort");
    assert!(lines(&output).iter().all(|line| line.contains("is not done within 400ms")), "{output}");
    assert!(milliseconds_of(&output, "drop") < 10_000, "{output}");
}

#[test]
fn hung_finalize_becomes_abort_or_is_abandoned() {
    let output = run_scene_with("only join", "freeze=ncclCommFinalize");
    assert!(milliseconds_of(&output, "drop") < 15_000, "{output}");
    // NCCL aborts what is not finished; the fake would end the process over a second end.
    let output = run_scene_with("only join", "fail=ncclCommFinalize:3");
    assert!(milliseconds_of(&output, "drop") < 5000, "{output}");
}

#[test]
fn incomplete_world_times_out() {
    let output = run_scene_with("only join", "absent=1");
    let expected = "NCCL cannot connect the ranks: `ncclCommInitRankConfig` is not done within 400ms \
                    [hint: set NCCL_DEBUG=INFO for details]";
    assert_eq!(lines(&output), [expected]);
    assert!((400..2000).contains(&milliseconds_of(&output, "join")), "{output}");
    // The same where NCCL does not even return.
    let output = run_scene_with("only join", "freeze=ncclCommInitRankConfig");
    assert_eq!(lines(&output), [expected]);
}

#[test]
fn failed_init_names_reason() {
    let output = run_scene_with("only join", "fail=ncclCommInitRankConfig:1");
    let expected = "NCCL cannot connect the ranks: `ncclCommInitRankConfig` failed: a CUDA call failed \
                    (ncclUnhandledCudaError, 1): fake.cc:1 the fake was told to fail [hint: check with \
                    `nvidia-smi` that the GPU and its driver support this NCCL]";
    assert_eq!(lines(&output), [expected]);
    let output = run_scene_with("only join", "fail=ncclGetUniqueId:2");
    assert!(
        output.contains("`ncclGetUniqueId` failed: a system call failed (ncclSystemError, 2)"),
        "{output}"
    );
}

#[test]
fn missing_cuda_does_not_panic() {
    let folder = Folder::new();
    let missing = "the CUDA driver cannot be loaded; searched:\n  \
                   `libcuda.so.1`: libcuda.so.1: cannot open shared object file: No such file or directory\n  \
                   `libcuda.so`: libcuda.so: cannot open shared object file: No such file or directory";
    assert_eq!(run_scene("cuda", library_vars(&folder.0, "")), format!("{missing}\n{missing}"));
    let output = run_scene_with("cuda", "");
    assert_eq!(lines(&output), ["there is CUDA", "CUDA device 7 does not exist: the driver shows 1"]);
    assert_eq!(run_scene_with("cuda", "nodevice=1").matches("shows no device").count(), 2);
}

#[test]
fn missing_driver_and_missing_device_differ() {
    let folder = Folder::new();
    folder.link("libnccl.so.2");
    let output = run_scene("only join", library_vars(&folder.0, ""));
    assert!(
        output.contains(
            "the CUDA driver cannot be loaded; searched:   `libcuda.so.1`: libcuda.so.1: cannot open"
        ),
        "{output}"
    );
    assert!(output.contains("`libcuda.so`: "), "{output}");
    let output = run_scene_with("only join", "nodevice=1");
    assert!(output.contains("` shows no device [hint: check CUDA_VISIBLE_DEVICES"), "{output}");
    let output = run_scene_with("only join", "fail=cuInit:803");
    assert!(output.contains("refused `cuInit`: a fake error of CUDA (error 803)"), "{output}");
    let folder = Folder::new();
    folder.link("libnccl.so.2").write("libcuda.so.1", b"no library");
    let output = run_scene("only join", library_vars(&folder.0, ""));
    assert!(output.contains("libcuda.so.1: file too short"), "{output}");
}
