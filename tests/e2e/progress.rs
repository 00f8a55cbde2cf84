//! Progress bars of several ranks: what a person sees on a terminal, and what a log of the console has.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use harness::{Gate, Launch, Name, Scratch, Size, is_rankrun};
use nix::sys::signal::Signal;

const SIZE: Size = Size { rows: 16, columns: 60 };

/// The rows with a bar.
fn bar_rows(rows: &[String]) -> Vec<&str> {
    rows.iter().map(String::as_str).filter(|row| row.contains('%')).collect()
}

#[test]
fn bars_of_two_ranks_on_a_terminal_stay_in_place_with_labels() {
    for options in [[].as_slice(), &["--tee", "3"]] {
        let scratch = Scratch::new();
        let (first, second) = (Gate::new(&scratch, "first"), Gate::new(&scratch, "second"));
        let steps = [
            "write=\r10% of {rank}",
            &first.step(),
            "write=\r20% of {rank}",
            "eprint=a line of {rank}",
            &second.step(),
            "write=\r100% of {rank}\n",
            "print=the end of {rank}",
        ];
        let launch = Launch::standalone(Name::Rankrun, 2).args(options).terminal_of(SIZE);
        let job = launch.worker(steps).start();
        job.wait_for_screen(SIZE, |rows| bar_rows(rows) == ["[default0]:10% of 0", "[default1]:10% of 1"]);
        first.open(2);
        let screen = job.wait_for_screen(SIZE, |rows| {
            let lines = rows.iter().filter(|row| row.contains("a line of")).count();
            lines == 2 && bar_rows(rows) == ["[default0]:20% of 0", "[default1]:20% of 1"]
        });
        assert_eq!(
            bar_rows(&screen[screen.len() - 2..]).len(),
            2,
            "the bars are below the lines: {screen:?}"
        );
        second.open(2);
        let outcome = job.wait();
        outcome.expect_exit_code(0);
        let history = SIZE.history_after(outcome.stdout_bytes());
        let mut last = bar_rows(&history);
        last.sort_unstable();
        assert_eq!(last, ["[default0]:100% of 0", "[default1]:100% of 1"], "{history:?}");
        assert_eq!(history.iter().filter(|row| row.contains("the end of")).count(), 2, "{history:?}");
    }
}

#[test]
fn bar_as_wide_as_its_terminal_is_one_row() {
    // As tqdm does, which fills the width that it is told.
    let script = "columns=$$(stty size <&2 | cut -d ' ' -f 2); bar=$$(printf %$${columns}s '' | tr ' ' '#'); \
                  for step in 1 2 3 4 5; do printf '\\r%s' \"$$bar\"; sleep 0.1; done; echo";
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--tee", "3"]).terminal_of(SIZE);
    let outcome = launch.shell(script).run();
    outcome.expect_exit_code(0);
    let history = SIZE.history_after(outcome.stdout_bytes());
    let rows: Vec<_> = history.iter().filter(|row| row.contains('#')).collect();
    assert_eq!(rows.len(), 2, "{history:?}");
    assert!(rows.iter().all(|row| row.len() == 59), "{history:?}");
}

#[test]
fn narrow_terminal_cuts_rows_and_follows_a_resize() {
    let scratch = Scratch::new();
    let (grow, end) = (Gate::new(&scratch, "grow"), Gate::new(&scratch, "end"));
    let text = "0123456789".repeat(6);
    let steps = [format!("write=\r{text}"), grow.step(), format!("write=\r{text}!"), end.step()];
    let job = Launch::standalone(Name::Rankrun, 2).terminal_of(SIZE).worker(steps).start();
    let cut = |rank: u32, width: usize| format!("[default{rank}]:{}>", &text[..width - 13]);
    job.wait_for_screen(SIZE, |rows| rows.ends_with(&[cut(0, 60), cut(1, 60)]));
    let wide = Size { columns: 100, ..SIZE };
    job.resize(wide);
    grow.open(2);
    job.wait_for_screen(wide, |rows| {
        rows.ends_with(&[format!("[default0]:{text}!"), format!("[default1]:{text}!")])
    });
    end.open(2);
    job.wait().expect_exit_code(0);
}

#[test]
fn bar_of_failed_rank_is_kept_across_restart() {
    let gate = Gate::closed();
    let steps = [
        "write=\r{rank} at 40% in {attempt}",
        &format!("attempt0:rank1:{}", gate.step()),
        "attempt0:rank1:exit=3",
        "attempt0:forever",
    ];
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--max-restarts", "1"]).terminal_of(SIZE);
    let job = launch.worker(steps).start();
    job.wait_for_screen(SIZE, |rows| {
        bar_rows(rows) == ["[default0]:0 at 40% in 0", "[default1]:1 at 40% in 0"]
    });
    gate.open(1);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    let history = SIZE.history_after(outcome.stdout_bytes());
    let mut bars = bar_rows(&history);
    bars.sort_unstable();
    let expected = [
        "[default0]:0 at 40% in 0",
        "[default0]:0 at 40% in 1",
        "[default1]:1 at 40% in 0",
        "[default1]:1 at 40% in 1",
    ];
    assert_eq!(bars, expected, "{history:?}");
}

#[test]
fn launcher_line_does_not_break_bars() {
    let launch = Launch::standalone(Name::Rankrun, 2).args(["-v"]).terminal_of(SIZE);
    let job = launch.worker(["write=\r10% of {rank}", "rank1:exit=0", "forever"]).start();
    job.wait_for_screen(SIZE, |rows| {
        ["0", "1"].iter().all(|rank| rows.iter().any(|row| row.ends_with(&format!("10% of {rank}"))))
    });
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    outcome.expect_exit_code(143);
    let history = SIZE.history_after(outcome.stdout_bytes());
    let bars: Vec<_> = history.iter().filter(|row| row.contains("10%")).collect();
    assert!(bars.contains(&&"[default0]:10% of 0".to_owned()), "{history:?}");
    assert!(bars.contains(&&"[default1]:10% of 1".to_owned()), "{history:?}");
    assert!(history.iter().any(|row| row.starts_with("rankrun: ") && row.contains("SIGTERM")), "{history:?}");
}

#[test]
fn one_worker_keeps_its_terminal_byte_for_byte() {
    let steps = ["write=\r10%\x1b[A\x1b[5C\x08", "write=\r20%\n"];
    let outcome = Launch::standalone(Name::Rankrun, 1).terminal_of(SIZE).worker(steps).run();
    outcome.expect_exit_code(0);
    assert!(outcome.stdout().contains("\r10%\x1b[A\x1b[5C\x08\r20%\r\n"), "{:?}", outcome.stdout());
}

#[test]
fn dumb_terminal_gets_plain_lines() {
    let steps = ["write=\r10% of {rank}\r20% of {rank}\r100% of {rank}\n"];
    let launch = Launch::standalone(Name::Rankrun, 2).env("TERM", "dumb").terminal_of(SIZE);
    let outcome = launch.worker(steps).run();
    outcome.expect_exit_code(0);
    assert!(!outcome.stdout().contains('\x1b'), "{:?}", outcome.stdout());
    let mut lines = outcome.lines_with("%");
    lines.sort_unstable();
    assert_eq!(lines, ["[default0]:100% of 0", "[default1]:100% of 1"], "{outcome}");
}

#[test]
fn teed_bar_in_a_pipe_is_one_line_and_its_file_has_every_byte() {
    let scratch = Scratch::new();
    let logs = scratch.folder("logs", 0o777);
    let snapshots: String = (0..=100).map(|step| format!("\r{step}% of {{rank}}")).collect();
    let steps = [format!("write={snapshots}\n"), "print=the end of {rank}".to_owned()];
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--tee", "3", "--log-dir", &logs]);
    let outcome = launch.worker(steps).run();
    outcome.expect_exit_code(0);
    let mut lines = outcome.stdout_lines();
    lines.sort_unstable();
    let expected = [
        "[default0]:100% of 0",
        "[default0]:the end of 0",
        "[default1]:100% of 1",
        "[default1]:the end of 1",
    ];
    assert_eq!(lines, expected, "{outcome}");
    let run = fs::read_dir(&logs)
        .expect("the folder is there")
        .next()
        .expect("a run has logged")
        .expect("its name");
    for rank in 0..2 {
        let written = format!("{}\nthe end of {rank}\n", snapshots.replace("{rank}", &rank.to_string()));
        let file: &Path = &run.path().join(format!("attempt_0/{rank}/stdout.log"));
        assert_eq!(fs::read_to_string(file).expect("the file is there"), written);
    }
}

#[test]
fn bar_in_a_pipe_without_tee_keeps_every_byte() {
    let outcome = Launch::standalone(Name::Rankrun, 1).worker(["write=\r10%\r20%\x08\n"]).run();
    assert_eq!(outcome.expect_exit_code(0).stdout(), "\r10%\r20%\x08\n");
}

/// torchrun prints them all; a carriage return begins a new line there.
#[test]
fn teed_control_characters_are_kept_except_in_rewritten_lines() {
    if !is_rankrun() {
        return;
    }
    let text = "B\x08BO\x08O\n\x1b[2Jx\nfoo\rbar\nB\x08B\n\x1b[2Jy\n";
    let start = "[default0]:B\x08BO\x08O\n[default0]:\x1b[2Jx\n[default0]:";
    let end = "bar\n[default0]:B\x08B\n[default0]:\x1b[2Jy\n";
    for (name, before) in [(Name::Torchrun, "foo\r"), (Name::Rankrun, "")] {
        let launch = Launch::standalone(name, 1).args(["--tee", "3"]);
        let outcome = launch.worker([format!("write={text}")]).run();
        assert_eq!(outcome.expect_exit_code(0).stdout(), format!("{start}{before}{end}"));
    }
}

#[test]
fn rewritten_line_in_pipe_is_shown_once() {
    let gate = Gate::closed();
    let steps = ["write=Loading {rank}...\r", &gate.step(), "write=\nok {rank}\n"];
    let job = Launch::standalone(Name::Rankrun, 2).args(["--tee", "3"]).worker(steps).start();
    job.wait_for_lines("Loading", 2);
    gate.open(2);
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    let mut lines = outcome.stdout_lines();
    lines.sort_unstable();
    let expected =
        ["[default0]:Loading 0...", "[default0]:ok 0", "[default1]:Loading 1...", "[default1]:ok 1"];
    assert_eq!(lines, expected, "{outcome}");
}

#[test]
fn bar_update_during_prompt_waits_for_answer() {
    let scratch = Scratch::new();
    let (drawn, answered) = (scratch.at("drawn"), scratch.at("answered"));
    let script = format!(
        "if [ $$LOCAL_RANK = 0 ]; then printf 'name? '; read -r name; echo \"thanks $$name\"; touch {answered}; \
         else for step in $$(seq 25); do printf '\\r%s%%' $$step; sleep 0.1; done; touch {drawn}; \
         until [ -e {answered} ]; do sleep 0.05; done; printf '\\r100%%\\n'; fi"
    );
    let launch = Launch::standalone(Name::Rankrun, 2).args(["--stdin", "0"]).terminal_of(SIZE);
    let mut job = launch.shell(&script).start();
    job.wait_for_text("name? ");
    while !Path::new(&drawn).exists() {
        assert!(job.elapsed() < Duration::from_secs(60), "rank 1 does not come to its end");
        thread::sleep(Duration::from_millis(20));
    }
    job.type_text("Ann\n");
    let outcome = job.wait();
    outcome.expect_exit_code(0);
    let out = outcome.stdout();
    let (_, rest) = out.split_once("name? ").expect("the prompt");
    let (between, _) = rest.split_once("thanks Ann").expect("the answer");
    assert!(!between.contains('%'), "{between:?}");
    assert!(outcome.stdout().contains("[default1]:100%"), "the bar goes on: {outcome}");
}
