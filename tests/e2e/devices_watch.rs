//! `rankrun devices --watch` in a terminal: it draws in place, marks what changes, and gives the terminal back.

use harness::{Fault, Gate, Job, Launch, Machine, Name};
use nix::sys::signal::Signal;

/// The other screen of the terminal, and back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Runs its arguments, and says whether the terminal is then as it was. Signals of the terminal are its child's alone.
const WRAPPER: &str = r#"trap : INT QUIT TERM
before=$(stty -g)
"$0" "$@"
code=$?
[ "$(stty -g)" = "$before" ] && echo the terminal is as it was
exit $code"#;

struct Watch {
    job: Job,
    /// The description of the fake machine.
    machine: String,
}

impl Watch {
    /// Two cards, looked at so often.
    fn start(every: &str) -> Self {
        Self::within(every, Vec::new())
    }

    fn within(every: &str, wrapper: Vec<String>) -> Self {
        let launch = Launch::new(Name::Rankrun).args(["devices", every]).on(&Machine::gpus(2));
        let machine = launch.machine_file();
        let wrapper: Vec<String> =
            if wrapper.is_empty() { ["sh", "-c", WRAPPER].map(str::to_owned).to_vec() } else { wrapper };
        let job = launch.under(wrapper).terminal().start();
        // The last line of the first snapshot.
        job.wait_for_text("devices in rank order");
        Self { job, machine }
    }

    /// Fails unless it gave the terminal back.
    #[track_caller]
    fn assert_ended(self, code: i32) {
        let outcome = self.job.wait();
        outcome.expect_exit_code(code).expect_stdout("the terminal is as it was");
        let all = outcome.stdout();
        let (enter, leave) = (all.find(ENTER), all.rfind(LEAVE));
        assert!(enter.is_some() && enter < leave, "{all:?}");
    }
}

#[test]
fn q_key_ends_watch() {
    let mut watch = Watch::start("--watch");
    watch.job.type_text("q");
    watch.assert_ended(0);
}

#[test]
fn ctrl_c_ends_watch() {
    let mut watch = Watch::start("--watch=3600");
    watch.job.type_text("\u{3}");
    watch.assert_ended(130);
}

#[test]
fn sigterm_ends_watch() {
    let watch = Watch::start("--watch=3600");
    let launcher = watch.job.only_child_of(watch.job.pid());
    watch.job.signal_to(launcher, Signal::SIGTERM);
    watch.assert_ended(143);
}

#[test]
fn changed_value_is_highlighted_in_place() {
    let mut watch = Watch::start("--watch=0.1");
    let _ = Machine::gpus(2).hot(1).describe(&watch.machine);
    watch.job.wait_for_text("\x1b[7m91\x1b[m");
    // Each snapshot begins in the corner, and what did not change is not marked.
    watch.job.type_text("q");
    let outcome = watch.job.wait();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout().matches("\x1b[H").count() >= 2, "{:?}", outcome.stdout());
    assert!(!outcome.stdout().contains("\x1b[7m41"), "{:?}", outcome.stdout());
    assert!(!outcome.stdout().contains("\x1b[7mNVIDIA"), "{:?}", outcome.stdout());
}

#[test]
fn space_bar_refreshes_at_once() {
    let mut watch = Watch::start("--watch=3600");
    let _ = Machine::gpus(2).hot(0).describe(&watch.machine);
    watch.job.type_text(" ");
    watch.job.wait_for_text("\x1b[7m91\x1b[m");
    watch.job.type_text("q");
    watch.assert_ended(0);
}

#[test]
fn hanging_library_keeps_last_screen() {
    let mut watch = Watch::start("--watch=0.1");
    let _ = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Hang).describe(&watch.machine);
    watch.job.wait_for_text("NVML has not answered for ");
    watch.job.wait_for_text(" s old");
    // The user does not have to wait for the library.
    watch.job.type_text("q");
    watch.assert_ended(0);
}

#[test]
fn crashing_library_does_not_end_watch() {
    let mut watch = Watch::start("--watch=0.1");
    let _ = Machine::gpus(2).with_fault("nvmlInit_v2", Fault::Crash).describe(&watch.machine);
    watch.job.wait_for_text("NVML crashed");
    let _ = Machine::gpus(2).hot(1).describe(&watch.machine);
    watch.job.wait_for_text("\x1b[7m91\x1b[m");
    watch.job.type_text("q");
    watch.assert_ended(0);
}

#[test]
fn watch_fits_resized_terminal() {
    let gate = Gate::closed();
    let smaller =
        format!("(head -c 1 <'{}'; stty rows 5 cols 30 </dev/tty) >/dev/null &\n", gate.path().display());
    let wrapper = ["sh".to_owned(), "-c".to_owned(), smaller + "exec \"$0\" \"$@\""];
    let mut watch = Watch::within("--watch=3600", wrapper.to_vec());
    gate.open(1);
    watch.job.wait_for_text("more lines: make ");
    watch.job.type_text("q");
    watch.job.wait().expect_exit_code(0);
}

#[test]
fn watch_without_terminal_is_refused() {
    let outcome = Launch::new(Name::Rankrun).args(["devices", "--watch"]).run();
    outcome
        .expect_exit_code(1)
        .expect_stderr("`--watch` needs a terminal")
        .expect_stderr("rankrun devices --json");
    assert!(outcome.stdout_lines().is_empty(), "{outcome}");
    let outcome =
        Launch::new(Name::Rankrun).args(["devices", "--watch"]).env("TERM", "dumb").terminal().run();
    outcome.expect_exit_code(1).expect_stdout("`TERM` says");
}
