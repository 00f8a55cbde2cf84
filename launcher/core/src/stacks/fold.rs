//! Workers that stand at the same place are one entry.

use std::collections::BTreeMap;

use super::{Frame, WorkerStacks};

/// Workers at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFold {
    pub ranks: Vec<u32>,
    /// The headline behind the ranks.
    pub place: String,
    /// The calls of the main thread, the innermost first; native ones where there is no Python stack.
    pub frames: Vec<Frame>,
    /// Why there are no native ones, where they were asked for.
    pub native_absence: Option<String>,
}

/// The workers by place, those with the fewest ranks first: the rank that the others wait for stands alone.
#[must_use]
pub fn fold(workers: &[WorkerStacks]) -> Vec<StackFold> {
    let mut places: BTreeMap<PlaceKey, Vec<&WorkerStacks>> = BTreeMap::new();
    for worker in workers {
        let key = (worker.main_frames().to_vec(), place_of(worker), worker.native_absence.clone());
        places.entry(key).or_default().push(worker);
    }
    let fold = |((frames, place, native_absence), workers): (PlaceKey, Vec<&WorkerStacks>)| StackFold {
        ranks: workers.iter().map(|worker| worker.rank).collect(),
        place: place.text(&workers),
        frames,
        native_absence,
    };
    let mut folds: Vec<StackFold> = places.into_iter().map(fold).collect();
    folds.sort_by_key(|fold| (fold.ranks.len(), fold.ranks.first().copied()));
    folds
}

/// Workers with the same key are one entry.
type PlaceKey = (Vec<Frame>, Place, Option<String>);

/// Where a worker stands, without what differs between workers at the same place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Python(String),
    /// As the kernel shows it, behind the native call of the program, and why there is no more.
    Kernel {
        activity: String,
        absence: String,
    },
}

impl Place {
    fn text(&self, workers: &[&WorkerStacks]) -> String {
        match self {
            Self::Python(place) => place.clone(),
            Self::Kernel { activity, absence } => {
                format!("{activity}, {}{}; {absence}", cpu_time(workers), device_power(workers))
            }
        }
    }
}

/// The CPU time of each process, in seconds.
fn cpu_time(workers: &[&WorkerStacks]) -> String {
    let process = |worker: &&WorkerStacks| worker.threads.iter().map(|thread| thread.cpu_seconds).sum();
    format!("CPU {} s", range(workers.iter().map(process), 1))
}

/// The power draw of each device in watts, behind a comma; nothing where it is unknown.
fn device_power(workers: &[&WorkerStacks]) -> String {
    let mut known = workers.iter().filter_map(|worker| worker.device_watts).peekable();
    if known.peek().is_none() { String::new() } else { format!(", device {} W", range(known, 0)) }
}

/// The least and the most of the numbers, once where they look alike.
fn range(numbers: impl Iterator<Item = f64>, digits: usize) -> String {
    let (least, most) =
        numbers.fold((f64::INFINITY, 0.0_f64), |(least, most), number| (least.min(number), most.max(number)));
    match (format!("{least:.digits$}"), format!("{most:.digits$}")) {
        (least, most) if least == most => most,
        (least, most) => format!("{least}-{most}"),
    }
}

fn place_of(worker: &WorkerStacks) -> Place {
    if worker.main_thread().is_none()
        && let Some(place) = kernel_place(worker)
    {
        return place;
    }
    Place::Python(python_place(worker))
}

/// The innermost call of the program's own code, and what it waits in.
fn python_place(worker: &WorkerStacks) -> String {
    let Some(thread) = worker.main_thread() else {
        let absences: Vec<&str> =
            [python_absence(worker)].into_iter().chain(worker.kernel_absence.as_deref()).collect();
        return absences.join("; ");
    };
    calls_place(&thread.frames).unwrap_or_else(|| "Python runs no code of a program".to_owned())
}

/// The innermost call of the program's own code, and the innermost of all. `None` without a call.
fn calls_place(frames: &[Frame]) -> Option<String> {
    let innermost = frames.first()?;
    let mut own = frames.iter().filter(|frame| frame.is_of_program() && !frame.is_unnamed());
    let first = own.clone().next();
    Some(match own.find(|frame| !frame.may_be_of_linked_crate()).or(first) {
        Some(own) if own == innermost => innermost.title(),
        Some(own) => format!("{}, in {}", own.title(), innermost.title()),
        None => innermost.title(),
    })
}

fn python_absence(worker: &WorkerStacks) -> &str {
    let absence = worker.python_absence.as_deref();
    absence.unwrap_or("its main thread is not among the Python threads that were read")
}

fn kernel_place(worker: &WorkerStacks) -> Option<Place> {
    let main = worker.threads.first()?;
    let others = match worker.threads.len() - 1 {
        0 => String::new(),
        1 => ", beside 1 thread".to_owned(),
        others => format!(", beside {others} threads"),
    };
    let native = calls_place(&main.native).map_or_else(String::new, |place| format!("{place}, "));
    let activity = format!("{native}{}{others}", main.activity());
    Some(Place::Kernel { activity, absence: python_absence(worker).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::{KernelThread, PythonThread};
    use super::*;

    fn frame(function: &str, file: &str, line: u32) -> Frame {
        Frame { function: function.to_owned(), file: file.to_owned(), line }
    }

    fn python(rank: u32, frames: Vec<Frame>) -> WorkerStacks {
        let other =
            PythonThread { frames: vec![frame("run", "/x/loader.py", rank)], ..PythonThread::default() };
        let main = PythonThread { frames, is_current: true, ..PythonThread::default() };
        WorkerStacks { rank, python: vec![other, main], ..WorkerStacks::default() }
    }

    #[test]
    fn workers_at_same_place_are_one_fold_and_lonely_rank_is_first() {
        let torch = "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py";
        let waiting = vec![frame("all_reduce", torch, 2810), frame("step", "/u/train.py", 41)];
        let loading = vec![frame("load_batch", "/u/data.py", 17), frame("step", "/u/train.py", 40)];
        let workers = [
            python(0, waiting.clone()),
            python(1, loading.clone()),
            python(2, waiting.clone()),
            python(3, vec![frame("<module>", "<frozen runpy>", 1)]),
        ];
        let folds = fold(&workers);
        let seen: Vec<(&[u32], &str)> =
            folds.iter().map(|fold| (&fold.ranks[..], fold.place.as_str())).collect();
        let waits = "step (train.py:41), in all_reduce (distributed_c10d.py:2810)";
        let expected: [(&[u32], &str); 3] =
            [(&[1], "load_batch (data.py:17)"), (&[3], "<module> (<frozen runpy>:1)"), (&[0, 2], waits)];
        assert_eq!(seen, expected);
        assert_eq!(folds[2].frames, waiting);
    }

    #[test]
    fn main_thread_of_a_dump_without_all_threads_is_the_current_one() {
        let mut worker = python(0, vec![frame("f", "/u/a.py", 1)]);
        worker.python.push(PythonThread::default());
        assert!(worker.main_thread().is_some_and(|thread| !thread.is_current));
        worker.is_main_missing = true;
        assert!(worker.main_thread().is_some_and(|thread| thread.is_current));
    }

    #[test]
    fn worker_without_python_stack_stands_at_its_native_call() {
        let main = |line| KernelThread {
            state: "S".to_owned(),
            system_call: Some("futex".to_owned()),
            native: vec![frame("wait", "/usr/lib/libc.so.6", 0), frame("reduce", "/u/main.c", line)],
            ..KernelThread::default()
        };
        let native = |rank, line| WorkerStacks {
            rank,
            threads: vec![main(line)],
            python_absence: Some("no Python".to_owned()),
            ..WorkerStacks::default()
        };
        let folds = fold(&[native(0, 7), native(1, 9), native(2, 7)]);
        let place = "reduce (main.c:7), in wait (libc.so.6), sleeps in futex, CPU 0.0 s; no Python";
        assert_eq!((&folds[1].ranks[..], folds[1].place.as_str()), (&[0, 2][..], place));
        assert_eq!(folds[1].frames, main(7).native);
        assert_eq!(folds[0].ranks, [1]);
    }

    #[test]
    fn worker_without_python_stack_stands_where_the_kernel_shows_it() {
        let thread = |call: &str| KernelThread {
            state: "S".to_owned(),
            system_call: Some(call.to_owned()),
            cpu_seconds: 1.25,
            ..KernelThread::default()
        };
        let mut worker = WorkerStacks {
            python_absence: Some("its Python has no hook".to_owned()),
            threads: vec![thread("futex"), thread("poll")],
            ..WorkerStacks::default()
        };
        let place = |worker: &WorkerStacks| fold(std::slice::from_ref(worker)).remove(0).place;
        assert_eq!(place(&worker), "sleeps in futex, beside 1 thread, CPU 2.5 s; its Python has no hook");
        let other = WorkerStacks { device_watts: Some(390.4), ..worker.clone() };
        worker.device_watts = Some(65.0);
        let folds = fold(&[worker.clone(), other, WorkerStacks { device_watts: None, ..worker.clone() }]);
        assert!(folds[0].place.contains("CPU 2.5 s, device 65-390 W; its Python"), "{}", folds[0].place);
        worker.threads.clear();
        worker.kernel_absence = Some("`/proc` does not show it".to_owned());
        assert_eq!(place(&worker), "its Python has no hook; `/proc` does not show it");
    }

    #[test]
    fn rust_program_without_debug_information_shows_function_of_its_own_crate() {
        let native = |function: &str| frame(function, "/job/my-train", 0);
        let of_library = frame("pause", "/usr/lib/libc.so.6", 0);
        let frames = [of_library.clone(), native("nix::unistd::pause"), native("my_train::step")];
        assert_eq!(calls_place(&frames).unwrap(), "my_train::step (my-train), in pause (libc.so.6)");
        // A C program has no crates.
        let frames = [of_library, native("step"), native("main")];
        assert_eq!(calls_place(&frames).unwrap(), "step (my-train), in pause (libc.so.6)");
    }
}
