//! Probes that are played by a shell.

use std::thread;

use super::*;
use crate::process::child::{Reaped, wait_for};

/// Longer than any of these tests may take.
const LONG: Duration = Duration::from_secs(60);

/// A shell that is asked for the order of the CUDA devices.
fn shell(script: &str, limit: Duration) -> Probes {
    let argv = ["sh", "-c", script].map(|word| CString::new(word).unwrap()).to_vec();
    let envp = vec![c"PATH=/usr/bin:/bin".to_owned()];
    let command = WorkerCommand { path: c"/bin/sh".to_owned(), argv, envp, cpus: None };
    let run = ProbeRun::start(&command, limit, Instant::now()).unwrap();
    Probes { asked: vec![(Probe::CudaOrder, ProbeProgress::Running(run))] }
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
fn an_answer_is_read_to_its_end() {
    let (say_it, expected) = answer();
    let later = format!("{} | {{ sleep 0.05; cat; }}", say_it);
    for script in [say_it.as_str(), later.as_str()] {
        assert_eq!(outcome(script, LONG).as_ref(), Ok(&expected), "{script}");
    }
}

#[test]
fn nobody_waits_for_what_happens_behind_an_answer() {
    let (say_it, expected) = answer();
    for behind in ["exec >&-; sleep 1000", "sleep 1000 &", "yes x | head -c 3000000 >&2"] {
        assert_eq!(outcome(&format!("{say_it}; {behind}"), LONG), Ok(expected.clone()), "{behind}");
    }
}

#[test]
fn junk_is_no_answer() {
    for script in ["echo '{\"cuda_order\": 7}'", "true", "printf '\\377\\000'"] {
        let failed = outcome(script, LONG).unwrap_err();
        assert!(matches!(&failed, ProbeFailed::Failed(why) if why.contains("makes no sense")), "{failed}");
        assert!(matches!(failed.to_trouble(), ProbeProblemKind::Failed(_)));
    }
}

#[test]
fn an_answer_without_an_end_is_not_read_to_its_end() {
    let failed = outcome("yes", LONG).unwrap_err();
    assert!(failed.to_string().contains("longer than 4194304 bytes"), "{failed}");
}

#[test]
fn a_crash_is_told_with_the_last_line() {
    let failed =
        outcome("echo first >&2; printf '\\033[31mlast\\033[0m\\n\\n' >&2; kill -SEGV $$", LONG).unwrap_err();
    assert_eq!(failed.to_string(), "killed by SIGSEGV; its last line: `last`");
    assert!(matches!(failed.to_trouble(), ProbeProblemKind::Crashed(_)));
    assert_eq!(outcome("exit 3", LONG).unwrap_err().to_string(), "exit code 3");
}

#[test]
fn who_does_not_answer_in_time_is_killed() {
    let limit = Duration::from_millis(50);
    // Also a probe that ignores signals, and one that has closed its output.
    for script in ["sleep 1000", "trap '' TERM INT; sleep 1000", "exec >&-; sleep 1000", "yes >&2"] {
        let failed = outcome(script, limit).unwrap_err();
        assert_eq!(failed, ProbeFailed::Hung { limit }, "{script}");
        assert_eq!(failed.to_trouble(), ProbeProblemKind::Hung(1));
    }
}

#[test]
fn an_end_that_somebody_else_has_reaped_is_taken_in() {
    let mut probes = shell("exit 3", LONG);
    let ProbeProgress::Running(run) = &mut probes.asked[0].1 else { panic!("it runs") };
    let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
    readable(&pidfd);
    let (pid, exit) = run.reaped_elsewhere();
    probes.reaped(pid, exit);
    assert!(probes.advance(Instant::now()));
    let (_, answer) = probes.into_answers().next().unwrap();
    assert_eq!(answer.unwrap_err().to_string(), "exit code 3");
}

#[test]
fn a_probe_dies_with_the_thread_that_started_it() {
    let starter = thread::spawn(|| {
        let mut probes = shell("sleep 1000", LONG);
        let ProbeProgress::Running(run) = &mut probes.asked[0].1 else { panic!("it runs") };
        let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
        // As where the launcher is killed: nothing of ours cleans up.
        std::mem::forget(probes);
        pidfd
    });
    readable(&starter.join().unwrap());
}

#[test]
fn who_is_dropped_is_killed() {
    let mut probes = shell("trap '' TERM; sleep 1000", LONG);
    let ProbeProgress::Running(run) = &mut probes.asked[0].1 else { panic!("it runs") };
    let pidfd = run.as_fds().last().unwrap().try_clone_to_owned().unwrap();
    drop(probes);
    readable(&pidfd);
}

/// All of them, and none is left as a zombie.
#[test]
fn who_is_dropped_together_is_reaped_together() {
    let mut probes = shell("trap '' TERM; sleep 1000", LONG);
    for script in ["exec >&- 2>&-; sleep 1000", "exit 3"] {
        probes.asked.append(&mut shell(script, LONG).asked);
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
fn only_the_question_about_the_order_changes_the_environment() {
    let ask = command(Probe::Kernel(ProbeScope::default())).unwrap();
    assert_eq!(ask.envp.len(), std::env::vars_os().count());
    assert_eq!(ask.path.as_c_str(), OWN_PROGRAM);
    let word = OsStr::from_bytes(ask.argv[1].as_bytes());
    let asked: Probe = serde_json::from_slice(question(word).unwrap()).unwrap();
    assert_eq!(asked, Probe::Kernel(ProbeScope::default()));

    let ask = command(Probe::CudaOrder).unwrap();
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
fn a_probe_that_fails_is_a_trouble_of_what_it_looks_for() {
    let failed = ProbeFailed::Hung { limit: LONG };
    let kinds =
        |probe| without(probe, &failed).troubles.iter().map(|trouble| trouble.kind).collect::<Vec<_>>();
    assert_eq!(kinds(Probe::Nvidia(ProbeScope::default())), [DeviceType::Cuda]);
    assert_eq!(kinds(Probe::Kernel(ProbeScope::default())), KERNEL_ONLY);
}
