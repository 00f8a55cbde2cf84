//! Texts of reports about out-of-memory kills.

use super::*;
use crate::reporter::summary::tests::example_failure;
use crate::reporter::summary::{self, render};

const PEAK: PeakMemory = PeakMemory { bytes: 398 * MIB + 1000, is_own: true };
const LIMIT: Option<u64> = Some(400 * MIB);

fn killed(oom: OomEvidence) -> FailureReport {
    FailureReport { foreign_kill: Some(ForeignKill { oom, peak: Some(PEAK) }), ..example_failure() }
}

fn first_line(failure: &FailureReport) -> String {
    render(failure).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn oom_kill_names_limit_and_peak() {
    let of = |limit, is_certain| killed(OomEvidence::InCgroup { limit, is_certain });
    let certain = of(LIMIT, true);
    assert_eq!(
        first_line(&certain),
        "rank 1 failed first: killed by the kernel: out of memory (cgroup limit 400 MiB, rank 1 had 398 MiB)"
    );
    assert!(summary::hint(&certain).is_some_and(|hint| hint.starts_with("raise the limit")));
    let of_machine = of(None, true);
    assert_eq!(
        first_line(&of_machine),
        "rank 1 failed first: killed by the kernel: out of memory (no cgroup limit was reached, rank 1 had 398 MiB)"
    );
    assert!(
        summary::hint(&of_machine).is_some_and(|hint| hint.starts_with("this machine had no memory left"))
    );
    assert_eq!(
        first_line(&of(LIMIT, false)),
        "rank 1 failed first: killed by SIGKILL, probably by the kernel: out of memory (cgroup limit 400 MiB, rank 1 \
         had 398 MiB)"
    );
    assert!(!render(&certain).contains("  memory "), "{}", render(&certain));
}

#[test]
fn peak_memory_may_be_of_worker_children() {
    let peak = Some(PeakMemory { is_own: false, ..PEAK });
    let oom = OomEvidence::InCgroup { limit: LIMIT, is_certain: false };
    let text = kill_in_words(ForeignKill { oom, peak }, rankrun_contract::rank::Rank(1));
    let numbers = "(cgroup limit 400 MiB, rank 1 or a process that it started had 398 MiB)";
    assert_eq!(text, format!("killed by SIGKILL, probably by the kernel: out of memory {numbers}"));
}

#[test]
fn sigkill_without_evidence_is_from_outside() {
    let nothing = killed(OomEvidence::NoKill);
    assert_eq!(first_line(&nothing), "rank 1 failed first: killed by SIGKILL (not sent by rankrun)");
    assert!(render(&nothing).contains("\n  memory    rank 1 had 398 MiB\n"), "{}", render(&nothing));
    assert!(!render(&nothing).contains("cause"), "{}", render(&nothing));
    let elsewhere = killed(OomEvidence::OnMachine { count: 2 });
    assert_eq!(first_line(&elsewhere), "rank 1 failed first: killed by SIGKILL (not sent by rankrun)");
    let guess = "\n  cause     perhaps out of memory: the kernel killed 2 processes of this machine for lack of memory since";
    assert!(render(&elsewhere).contains(guess), "{}", render(&elsewhere));
    for evidence in [OomEvidence::OnMachine { count: 2 }, OomEvidence::Unknown] {
        assert!(summary::hint(&killed(evidence)).is_some_and(|hint| hint.contains("`dmesg`")));
    }
    let silent = summary::hint(&nothing).unwrap_or_default();
    assert!(silent.starts_with("the kernel killed nothing for lack of memory"), "{silent}");
}

#[test]
fn sigkill_by_launcher_is_not_from_outside() {
    assert_eq!(first_line(&example_failure()), "rank 1 failed first: killed by SIGKILL");
    assert_eq!(hint(&example_failure()), None);
}

#[test]
fn oom_kill_of_child_is_shown_beside_worker_exit() {
    let oom = OomKills { cgroup: Some(1), limit: LIMIT, machine: Some(1) };
    let failed = FailureReport { exit: Exit::Code(1), oom, ..example_failure() };
    let row = "\n  memory    the kernel killed 1 process of the job's cgroup for lack of memory (cgroup limit 400 MiB)\n";
    assert!(render(&failed).contains(row), "{}", render(&failed));
    assert_eq!(hint(&failed), Some(format!("perhaps for lack of memory: {RAISE_LIMIT}")));
    for (line, is_advised) in [
        ("ValueError: shapes do not match", false),
        ("torch.OutOfMemoryError: HIP out of memory", false),
        ("ValueError: -9 is not 137", false),
        ("MemoryError", true),
        ("subprocess.CalledProcessError: Command 'x' returned non-zero exit status 137.", true),
        ("RuntimeError: worker ended, exitcode: -9", true),
        ("OSError: [Errno 12] Cannot allocate memory", true),
        ("concurrent.futures.process.BrokenProcessPool: A process in the pool was terminated abruptly", true),
    ] {
        let failed = FailureReport { tail: vec!["Killed".to_owned(), line.to_owned()], ..failed.clone() };
        assert_eq!(hint(&failed).is_some(), is_advised, "{line}");
    }
    let report = |message: &str| {
        let message = message.to_owned();
        rankrun_contract::report::ErrorReport {
            message,
            callstack: None,
            unix_seconds: None,
            lost_rank: None,
        }
    };
    let other = FailureReport { report: Some(report("ValueError: bad batch")), ..failed.clone() };
    assert_eq!(hint(&other), None, "it has a reason of its own");
    let loader = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.";
    assert!(hint(&FailureReport { report: Some(report(loader)), ..failed.clone() }).is_some());
    let none = FailureReport { oom: OomKills { cgroup: Some(0), ..oom }, ..failed };
    assert!(!render(&none).contains("memory"), "{}", render(&none));
}

#[test]
fn memory_is_shown_in_whole_mib() {
    for (bytes, text) in [
        (0, "0 B"),
        (MIB, "1 MiB"),
        (400 * MIB - 1, "400 MiB"),
        (9_999 * MIB, "9999 MiB"),
        (80 << 30, "80.0 GiB"),
    ] {
        assert_eq!(memory(bytes), text);
    }
}
