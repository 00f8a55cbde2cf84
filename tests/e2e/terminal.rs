//! A launcher that has a terminal.

use harness::{Gate, Launch, Name, field, is_rankrun};

#[test]
fn workers_see_a_terminal() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 2).terminal().worker(["tty"]).run();
        outcome.expect_exit_code(0);
        let lines = outcome.lines_with("tty rank=");
        assert_eq!(lines.len(), 2, "{outcome}");
        for line in &lines {
            assert_eq!(field(line, "out"), Some("true"), "{outcome}");
            assert_eq!(field(line, "err"), Some("true"), "{outcome}");
        }
        let names: Vec<_> = lines.iter().map(|line| field(line, "name")).collect();
        // torchrun hands out its own terminal; ours are captured, each on its own.
        assert_eq!(names[0] == names[1], *name == Name::Torchrun, "{outcome}");
    }
}

#[test]
fn workers_of_launcher_without_terminal_have_none() {
    for name in Name::both() {
        let outcome = Launch::standalone(*name, 1).worker(["tty"]).run();
        outcome.expect_exit_code(0).expect_stdout("out=false err=false");
    }
}

#[test]
fn under_torchruns_name_streams_are_inherited() {
    // The worker's stdout is the launcher's own pipe, by its number.
    let launch = Launch::standalone(Name::Torchrun, 1);
    let outcome = launch.shell("readlink /proc/$$PPID/fd/1; readlink /proc/$$$$/fd/1").run();
    outcome.expect_exit_code(0);
    let lines = outcome.stdout_lines();
    assert!(lines[0].starts_with("pipe:"), "{outcome}");
    assert_eq!(lines[0], lines[1], "{outcome}");
}

#[test]
fn ctrl_c_reaches_each_worker_once() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 2).terminal().args(["--shutdown-timeout", "3600"]);
        let gate = Gate::closed();
        let steps = ["catch", "alive", "signal", &gate.step(), "exit=0"];
        let mut job = launch.worker(steps).start();
        job.wait_for_lines("alive rank=", 2);
        job.type_text("\u{3}");
        job.wait_for_lines("got SIGINT rank=", 2);
        // A second one would have killed them here.
        gate.open(2);
        job.wait().expect_exit_code(name.code(130));
    }
}

#[test]
fn second_ctrl_c_kills() {
    if is_rankrun() {
        for name in Name::both() {
            let launch = Launch::standalone(*name, 2).terminal().args(["--shutdown-timeout", "3600"]);
            let mut job = launch.worker(["catch", "alive", "signal", "forever"]).start();
            job.wait_for_lines("alive rank=", 2);
            job.type_text("\u{3}");
            job.wait_for_lines("got SIGINT rank=", 2);
            job.type_text("\u{3}");
            job.wait().expect_exit_code(name.code(130));
        }
    }
}

#[test]
fn closed_terminal_ends_the_job() {
    for name in Name::both() {
        let mut job = Launch::standalone(*name, 2).terminal().worker(["alive", "forever"]).start();
        job.wait_for_lines("alive rank=", 2);
        // `exit` in a shell and a lost connection both end in SIGHUP to the foreground.
        job.signal(nix::sys::signal::Signal::SIGHUP);
        job.close_stdin();
        job.wait().expect_exit_code(name.code(129));
    }
}

#[test]
fn carriage_return_updates_in_place() {
    let gate = Gate::closed();
    let launch = Launch::standalone(Name::Rankrun, 1).terminal();
    let job = launch.worker(["write=\r10%", &gate.step(), "write=\r20%\n"]).start();
    job.wait_for_text("10%");
    gate.open(1);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout().contains("10%\r20%"), "the progress was broken into lines\n{outcome}");
}

#[test]
fn terminal_lines_have_one_crlf() {
    let outcome = Launch::standalone(Name::Rankrun, 1).terminal().worker(["print=one", "print=two"]).run();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout().contains("one\r\ntwo\r\n"), "{:?}", outcome.stdout());
}

#[test]
fn single_worker_reads_terminal() {
    for name in Name::both() {
        let launch = Launch::standalone(*name, 1).terminal();
        let mut job = launch.worker(["print=(Pdb)", "read"]).start();
        job.wait_for_text("(Pdb)");
        job.type_text("continue\n");
        job.wait().expect_exit_code(0).expect_stdout("text=<continue>");
    }
}
