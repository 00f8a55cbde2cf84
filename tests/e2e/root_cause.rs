//! Ten ranks fail within a few milliseconds because one did: that one is named.

use harness::{Gate, Launch, Name, Outcome, Scratch, is_soak, is_torchrun, print_notice};
use nix::sys::stat::Mode;

const RANKS: usize = 10;

/// How the one rank fails of which the others fail.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// It writes an error file, and takes a while to go, as Python does. So do the others.
    WritesAndGoes,
    /// It ends without a message.
    Ends,
    /// It writes an error file, and is not yet gone when the first of the others is: our stop ends it.
    WritesAndLingers,
}

/// One job. The rank that is the cause holds the only write end of a FIFO, and the others wait for its end of file.
/// Workers of even rank ignore SIGTERM and end by themselves.
fn run_failing_job(name: Name, rank: usize, cause: Cause) -> Outcome {
    let scratch = Scratch::new();
    let gate = Gate::new(&scratch, "gate");
    let peers = scratch.path().join("peers");
    nix::unistd::mkfifo(&peers, Mode::from_bits_truncate(0o600)).expect("the scratch folder takes a FIFO");
    let write = |text: &str| {
        let report = r#"{"message": {"message": "TEXT", "extraInfo": {"timestamp": "1700000000"}}}"#;
        format!("echo '{}' > \"$TORCHELASTIC_ERROR_FILE\"", report.replace("TEXT", text))
    };
    let (cause, victim) = match cause {
        // Longer than the steps of a file's time.
        Cause::WritesAndGoes => {
            (format!("{}; sleep 0.05; exit 3", write("cause")), format!("{}; exit 1", write("lost a peer")))
        }
        Cause::Ends => ("exit 3".to_owned(), "sleep 0.02; exit 1".to_owned()),
        Cause::WritesAndLingers => (
            format!("{}; exec 4>&-; sleep 1000", write("cause")),
            format!("sleep 0.05; {}; exit 1", write("lost a peer")),
        ),
    };
    let (peers, gate_path) = (peers.display(), gate.path().display());
    let line = format!(
        "if [ $RANK = {rank} ]; then exec 4>{peers}; echo ready; head -c 1 {gate_path} >/dev/null; {cause}; fi; \
         if [ $((RANK % 2)) = 0 ]; then trap '' TERM; fi; \
         exec 4<{peers}; echo ready; cat <&4; {victim}"
    );
    let job = Launch::standalone(name, RANKS).shell(&line).start();
    job.wait_for_lines("ready", RANKS);
    gate.open(1);
    job.wait()
}

/// The rank that torchrun's report names as the root cause.
fn root_cause(outcome: &Outcome) -> Option<String> {
    let err = outcome.stderr();
    let (_, root) = err.split_once("Root Cause (first observed failure):")?;
    let (_, rank) = root.split_once("  rank      : ")?;
    Some(rank.split(' ').next()?.to_owned())
}

#[test]
fn ten_simultaneous_failures_report_root_cause() {
    if is_torchrun() {
        print_notice("skipped: torchrun 2.15 tells only whole seconds apart");
        return;
    }
    let rounds = if is_soak() { 20 } else { 5 };
    for round in 0..rounds {
        for name in Name::both() {
            for cause in [Cause::WritesAndGoes, Cause::Ends, Cause::WritesAndLingers] {
                let rank = (round * 7 + 3) % RANKS;
                let outcome = run_failing_job(*name, rank, cause);
                let own_code = if matches!(cause, Cause::WritesAndLingers) { 1 } else { 3 };
                outcome
                    .expect_exit_code(name.code(own_code))
                    .expect_stderr(&format!("error: rank {rank} failed first: "));
                if *name == Name::Torchrun {
                    let root = root_cause(&outcome);
                    assert_eq!(root, Some(rank.to_string()), "{cause:?}\n{outcome}");
                    outcome.expect_stderr(&format!(") local_rank: {rank} (pid: "));
                }
            }
        }
    }
}
