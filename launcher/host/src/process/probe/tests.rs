//! Probes that are played by a shell.

use std::thread;

use super::*;
use crate::process::child::{Reaped, wait_for};

/// Longer than any of these tests may take.
const LONG: Duration = Duration::from_secs(60);

/// A shell that is asked for the order of the CUDA devices.
fn shell(script: &str, limit: Duration) -> Probes {
    let argv = ["sh", "-c", script].map(|argument| CString::new(argument).unwrap()).to_vec();
    let envp = vec![c"PATH=/usr/bin:/bin".to_owned()];
    let command = WorkerCommand { path: c"/bin/sh".to_owned(), argv, envp, cpus: None, names_tracer: false };
    let run = ProbeRun::start(&command, limit, Instant::now()).unwrap();
    Probes { probes: vec![(Probe::CudaOrder, ProbeProgress::Running(run))] }
}

/// The result of one probe; no other process is waited for.
fn outcome(script: &str, limit: Duration) -> Result<Answer, ProbeFailed> {
    let mut probes = shell(script, limit);
    wait_for_all(&mut probes, limit, |_, _| {});
    let (_, answer) = probes.into_answers().next().unwrap();
    answer
}

/// A shell's words for an answer, and the answer.
fn answer() -> (String, Answer) {
    let answer = Answer::CudaOrder(Err("no driver".to_owned()));
    (format!("echo '{}'", serde_json::to_string(&answer).unwrap()), answer)
}

#[test]
fn answer_is_read_completely() {
    let (say_it, expected) = answer();
    let later = format!("{} | {{ sleep 0.05; cat; }}", say_it);
    for script in [say_it.as_str(), later.as_str()] {
        assert_eq!(outcome(script, LONG).as_ref(), Ok(&expected), "{script}");
    }
}

#[test]
fn probe_is_done_at_answer_even_if_process_continues() {
    let (say_it, expected) = answer();
    for behind in ["exec >&-; sleep 1000", "sleep 1000 &", "yes x | head -c 3000000 >&2"] {
        assert_eq!(outcome(&format!("{say_it}; {behind}"), LONG), Ok(expected.clone()), "{behind}");
    }
}

#[test]
fn junk_answer_fails_probe() {
    for script in ["echo '{\"cuda_order\": 7}'", "true", "printf '\\377\\000'"] {
        let failed = outcome(script, LONG).unwrap_err();
        assert!(matches!(&failed, ProbeFailed::Failed(why) if why.contains("makes no sense")), "{failed}");
        assert!(matches!(failed.to_problem_kind(), ProbeProblemKind::Failed(_)));
    }
}

#[test]
fn endless_answer_fails_at_length_limit() {
    let failed = outcome("yes", LONG).unwrap_err();
    assert!(failed.to_string().contains("longer than 4194304 bytes"), "{failed}");
}

#[test]
fn crashed_probe_names_signal_and_last_line() {
    let failed =
        outcome("echo first >&2; printf '\\033[31mlast\\033[0m\\n\\n' >&2; kill -SEGV $$", LONG).unwrap_err();
    assert_eq!(failed.to_string(), "killed by SIGSEGV; its last line: `last`");
    assert!(matches!(failed.to_problem_kind(), ProbeProblemKind::Crashed(_)));
    assert_eq!(outcome("exit 3", LONG).unwrap_err().to_string(), "exit code 3");
}

#[test]
fn probe_that_exceeds_limit_is_killed() {
    let limit = Duration::from_millis(50);
    // Also a probe that ignores signals, and one that has closed its output.
    for script in ["sleep 1000", "trap '' TERM INT; sleep 1000", "exec >&-; sleep 1000", "yes >&2"] {
        let failed = outcome(script, limit).unwrap_err();
        assert_eq!(failed, ProbeFailed::Hung { limit }, "{script}");
        assert_eq!(failed.to_problem_kind(), ProbeProblemKind::Hung(1));
    }
}

#[test]
fn exit_reaped_elsewhere_is_accepted() {
    let mut probes = shell("exit 3", LONG);
    let ProbeProgress::Running(run) = &mut probes.probes[0].1 else { panic!("it runs") };
    let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
    readable(&pidfd);
    let (pid, exit) = run.reaped_elsewhere();
    probes.on_reaped(pid, exit);
    assert!(probes.advance(Instant::now()));
    let (_, answer) = probes.into_answers().next().unwrap();
    assert_eq!(answer.unwrap_err().to_string(), "exit code 3");
}

#[test]
fn probe_dies_with_thread_that_started_it() {
    let starter = thread::spawn(|| {
        let mut probes = shell("sleep 1000", LONG);
        let ProbeProgress::Running(run) = &mut probes.probes[0].1 else { panic!("it runs") };
        let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
        // As where the launcher is killed: nothing of ours cleans up.
        std::mem::forget(probes);
        pidfd
    });
    readable(&starter.join().unwrap());
}

#[test]
fn dropped_probe_is_killed() {
    let mut probes = shell("trap '' TERM; sleep 1000", LONG);
    let ProbeProgress::Running(run) = &mut probes.probes[0].1 else { panic!("it runs") };
    let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
    drop(probes);
    readable(&pidfd);
}

/// All of them, and none is left as a zombie.
#[test]
fn dropped_probes_are_all_reaped() {
    let mut probes = shell("trap '' TERM; sleep 1000", LONG);
    for script in ["exec >&- 2>&-; sleep 1000", "exit 3"] {
        probes.probes.append(&mut shell(script, LONG).probes);
    }
    let pids: Vec<Pid> = probes.running().map(ProbeRun::pid).collect();
    drop(probes);
    assert_eq!(pids.len(), 3);
    for pid in pids {
        assert_eq!(wait_for(pid), Reaped::NoChildren);
    }
}

/// Waits for the end of a process.
fn readable(pidfd: &impl AsFd) {
    let timeout = PollTimeout::try_from(LONG).unwrap();
    assert_eq!(poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], timeout), Ok(1));
}

#[test]
fn only_cuda_order_probe_changes_environment() {
    let ask = probe_command(&Probe::Kernel(ProbeScope::default())).unwrap();
    assert_eq!(ask.envp.len(), std::env::vars_os().count() + 1, "`RANKRUN_KEEP=1`");
    assert_eq!(ask.path.as_c_str(), OWN_PROGRAM);
    let argument = OsStr::from_bytes(ask.argv[1].as_bytes());
    let probe: Probe = serde_json::from_slice(parse_probe_argument(argument).unwrap()).unwrap();
    assert_eq!(probe, Probe::Kernel(ProbeScope::default()));

    let ask = probe_command(&Probe::CudaOrder).unwrap();
    let of_cuda: Vec<&str> = ask
        .envp
        .iter()
        .map(|entry| entry.to_str().unwrap())
        .filter(|entry| entry.starts_with("CUDA_"))
        .collect();
    assert!(of_cuda.contains(&"CUDA_DEVICE_ORDER=FASTEST_FIRST"));
    assert!(!of_cuda.iter().any(|entry| entry.starts_with("CUDA_VISIBLE_DEVICES")));
}

#[test]
fn failed_probe_is_problem_of_its_device_types() {
    let failed = ProbeFailed::Hung { limit: LONG };
    let kinds = |probe| {
        failed_probe_machine(&probe, &failed).troubles.iter().map(|problem| problem.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(Probe::Nvidia(ProbeScope::default())), [DeviceType::Cuda]);
    assert_eq!(kinds(Probe::Kernel(ProbeScope::default())), KERNEL_ONLY);
}

/// The probe of a slow driver is killed, and the card may be good.
#[test]
fn only_unkillable_probe_of_readings_is_said_to_be() {
    let problem = |failed| {
        let probes = vec![(Probe::Readings(Vec::new()), ProbeProgress::Answered(Err(failed)))];
        Probes { probes }.into_readings().unwrap_err()
    };
    let limit = Duration::from_millis(1_400);
    let hung = problem(ProbeFailed::Hung { limit });
    assert_eq!((hung.why.as_str(), hung.is_unkillable), ("NVML: no answer within 1.4 s", false));
    assert!(problem(ProbeFailed::Unkillable { limit, pid: Pid::from_raw(7) }).is_unkillable);
    assert!(!problem(ProbeFailed::Failed("a probe cannot be started".to_owned())).is_unkillable);
}
