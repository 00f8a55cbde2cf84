//! Words for the stacks of workers: folded for all of them, or every thread of one. Pure.

use std::fmt::Write;

use rankrun_contract::rank::Rank;
use rankrun_core::plain::plain;
use rankrun_core::stacks::fold::{StackFold, fold};
use rankrun_core::stacks::{Frame, KernelThread, WorkerStacks};

use rankrun_core::rank_names::rank_names;

/// The main threads of all workers, equal stacks once; `most` calls of each.
#[must_use]
pub fn render_folded(workers: &[WorkerStacks], most: usize) -> String {
    let mut text = String::new();
    for StackFold { ranks, place, frames, native_absence } in fold(workers) {
        let _ = writeln!(text, "{}: {}", rank_names(ranks.into_iter().map(Rank)), plain(&place));
        push_frames(&frames, most, &mut text);
        if let Some(absence) = native_absence {
            let _ = writeln!(text, "    no native stack: {}", plain(&absence));
        }
    }
    text
}

/// [`render_folded`] beside other text: so many lines of it, and how many are left out.
#[must_use]
pub(crate) fn render_briefly(workers: &[WorkerStacks], most_calls: usize, most_lines: usize) -> Vec<String> {
    let text = render_folded(workers, most_calls);
    let mut lines: Vec<String> = text.lines().take(most_lines).map(str::to_owned).collect();
    let left = text.lines().count() - lines.len();
    if left > 0 {
        lines.push(format!("and {left} further lines"));
    }
    lines
}

/// Every thread of one worker.
#[must_use]
pub fn render_worker(worker: &WorkerStacks) -> String {
    let pid = worker.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
    let mut text = format!("rank {}{pid}\n", worker.rank);
    // The main thread stands last in the dump.
    for thread in worker.python.iter().rev() {
        let name = thread.name.as_ref().map_or_else(String::new, |name| format!(" {}", plain(name)));
        let _ = writeln!(text, "  Python thread{name} 0x{}", thread.id);
        push_frames(&thread.frames, usize::MAX, &mut text);
    }
    if worker.is_python_cut {
        text.push_str("  further Python threads are left out\n");
    }
    for absence in worker.python_absence.iter().chain(&worker.kernel_absence) {
        let _ = writeln!(text, "  {}", plain(absence));
    }
    for thread in &worker.threads {
        let KernelThread { id, name, cpu_seconds, .. } = thread;
        let activity = thread.activity();
        let _ = writeln!(text, "  thread {id} ({}): {activity}; CPU {cpu_seconds:.2} s", plain(name));
        push_frames(&thread.native, usize::MAX, &mut text);
    }
    if let Some(absence) = &worker.native_absence {
        let _ = writeln!(text, "  no native stack: {}", plain(absence));
    }
    if let Some(watts) = worker.device_watts {
        let _ = writeln!(text, "  its device draws {watts:.0} W");
    }
    text
}

fn push_frames(frames: &[Frame], most: usize, text: &mut String) {
    for frame in frames.iter().take(most) {
        let _ = writeln!(text, "    {}", plain(&frame.full_text()));
    }
    match frames.len().saturating_sub(most) {
        0 => {}
        1 => text.push_str("    and 1 outer call\n"),
        left => _ = writeln!(text, "    and {left} outer calls"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::stacks::PythonThread;

    fn worker(rank: u32, frames: &[(&str, u32)]) -> WorkerStacks {
        let frame = |(function, line): &(&str, u32)| Frame {
            function: (*function).to_owned(),
            file: "/u/train.py".to_owned(),
            line: *line,
        };
        let frames = frames.iter().map(frame).collect();
        let main = PythonThread { id: "7f00".to_owned(), frames, ..PythonThread::default() };
        let thread = KernelThread {
            id: 70,
            name: "py\x1b[31mthon".to_owned(),
            state: "S".to_owned(),
            system_call: Some("futex".to_owned()),
            cpu_seconds: 1.5,
            ..KernelThread::default()
        };
        let (pid, threads) = (Some(70), vec![thread]);
        WorkerStacks { rank, pid, python: vec![main], threads, ..WorkerStacks::default() }
    }

    #[test]
    fn folded_text_names_ranks_and_place_before_calls() {
        let waiting = [("wait", 9), ("step", 41), ("<module>", 80)];
        let workers: Vec<_> = [0, 1, 2].map(|rank| worker(rank, &waiting)).into();
        let text = render_folded(&[workers, vec![worker(3, &[("load", 17)])]].concat(), 1);
        let expected = "\
rank 3: load (train.py:17)
    /u/train.py:17 in load
ranks 0-2: wait (train.py:9)
    /u/train.py:9 in wait
    and 2 outer calls
";
        assert_eq!(text, expected);
    }

    #[test]
    fn native_calls_stand_below_their_thread_and_absence_is_one_line() {
        let mut worker = worker(3, &[]);
        worker.python.clear();
        worker.python_absence = Some("no hook".to_owned());
        worker.native_absence = Some("eu-stack is not installed".to_owned());
        let headline = "rank 3: sleeps in futex, CPU 1.5 s; no hook\n";
        assert_eq!(
            render_folded(&[worker.clone()], 6),
            format!("{headline}    no native stack: eu-stack is not installed\n")
        );
        worker.native_absence = None;
        worker.threads[0].native =
            vec![Frame { function: "wait".to_owned(), file: "/lib/libc.so.6".to_owned(), line: 0 }];
        assert!(
            render_folded(&[worker.clone()], 6).ends_with("; no hook\n    /lib/libc.so.6 in wait\n"),
            "{worker:?}"
        );
        assert!(render_worker(&worker).ends_with("CPU 1.50 s\n    /lib/libc.so.6 in wait\n"));
    }

    #[test]
    fn text_of_one_worker_has_its_threads_and_no_control_characters() {
        let mut worker = worker(3, &[("load", 17)]);
        worker.kernel_absence = Some("no more".to_owned());
        worker.device_watts = Some(65.4);
        let expected = "\
rank 3, pid 70
  Python thread 0x7f00
    /u/train.py:17 in load
  no more
  thread 70 (python): sleeps in futex; CPU 1.50 s
  its device draws 65 W
";
        assert_eq!(render_worker(&worker), expected);
    }
}
