//! Calls on files. A network file system may never answer, so one thread makes them, one after the other. After a call
//! that hangs another thread takes over. On files in memory the caller makes them itself.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::gettid;

use super::{BlockingCall, CallProgress, CallStep};

/// How long a call may use no CPU. A large report takes longer on a busy machine; it is read all the time.
const FILE_LIMIT: Duration = Duration::from_secs(2);
/// A call that has used less CPU hangs: starting it takes some of this.
const MIN_CPU: Duration = Duration::from_millis(1);
/// The thread ends when it has had no call for so long. A start, a restart and an end have several calls.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// The agent's calls on files. [`Self::run`] is for calls after a failure and at the end of the job. If one has no
/// answer in time, the later ones are left out, so that they delay the job once at most.
#[derive(Debug, Clone, Default)]
pub struct FileCalls {
    is_silent: Arc<AtomicBool>,
    is_in_memory: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<FileThread>>>,
}

/// The thread that makes the calls.
#[derive(Debug)]
struct FileThread {
    calls: Sender<FileCall>,
    state: Arc<ThreadState>,
}

/// Makes the call, and marks the thread as idle before the owner has the answer.
type FileCall = Box<dyn FnOnce(&ThreadState) + Send>;

#[derive(Debug, Default)]
struct ThreadState {
    /// The thread waits for a call. Cleared by the owner, which then sends one, or by the thread, which then ends.
    is_idle: AtomicBool,
    id: AtomicI32,
    /// CPU time of the thread when the last call began, in microseconds.
    cpu_at_start: AtomicU64,
}

impl FileCalls {
    /// All files are in memory from now on: no call hangs.
    pub(crate) fn set_in_memory(&self) {
        self.is_in_memory.store(true, Ordering::Relaxed);
    }

    /// Starts `call`. The caller polls it. On files in memory the call has ended when this returns.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub fn start<T: Send + 'static>(
        &self,
        call: impl FnOnce(&CallStep) -> T + Send + 'static,
    ) -> io::Result<BlockingCall<T>> {
        let (started, answer) = BlockingCall::open(CallStep::default())?;
        if self.is_in_memory.load(Ordering::Relaxed) {
            let result = call(&answer.step);
            answer.send(result);
            return Ok(started);
        }
        self.submit(Box::new(move |thread| {
            let result = call(&answer.step);
            thread.is_idle.store(true, Ordering::Release);
            answer.send(result);
        }))?;
        Ok(started)
    }

    /// The result of `call` on files of `folder`; `None` if the file system does not answer, or the call
    /// panics on the thread.
    pub fn run<T: Send + 'static>(
        &self,
        folder: &Path,
        call: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Option<T> {
        if self.is_in_memory.load(Ordering::Relaxed) {
            return Some(call());
        }
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let on_thread = call.clone();
        let (sender, answer) = mpsc::channel();
        let started = self.submit(Box::new(move |thread| {
            let result = on_thread();
            thread.is_idle.store(true, Ordering::Release);
            // The owner may have given up.
            let _ = sender.send(result);
        }));
        let progress = match started {
            Ok(thread) => wait_while_it_computes(&answer, FILE_LIMIT, &thread),
            // The limit on threads is reached: the files are worth more than the risk.
            Err(_) => CallProgress::Returned(call()),
        };
        let folder = folder.display();
        match progress {
            CallProgress::Returned(answer) => return Some(answer),
            CallProgress::Lost => tracing::warn!("a call on files of `{folder}` ended with a panic"),
            CallProgress::Running => {
                self.is_silent.store(true, Ordering::Relaxed);
                tracing::warn!("the file system of `{folder}` does not answer: its files are left out");
            }
        }
        None
    }

    /// The file system may answer again: a folder on it was made.
    pub fn retry(&self) {
        self.is_silent.store(false, Ordering::Relaxed);
    }

    /// Hands `call` to the idle thread, or to a new one if a call hangs.
    fn submit(&self, mut call: FileCall) -> io::Result<Arc<ThreadState>> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = thread.as_ref().filter(|thread| thread.state.is_idle.swap(false, Ordering::AcqRel));
        if let Some(idle) = idle {
            match idle.calls.send(call) {
                Ok(()) => return Ok(Arc::clone(&idle.state)),
                Err(SendError(unsent)) => call = unsent,
            }
        }
        let started = FileThread::start(call)?;
        let state = Arc::clone(&started.state);
        *thread = Some(started);
        Ok(state)
    }
}

impl FileThread {
    /// Starts a thread, which makes this call first. It inherits the signal mask.
    fn start(first: FileCall) -> io::Result<Self> {
        let (calls, received) = mpsc::channel();
        let state = Arc::new(ThreadState::default());
        let own = Arc::clone(&state);
        thread::Builder::new().name("files".to_owned()).spawn(move || {
            own.id.store(gettid().as_raw(), Ordering::Relaxed);
            first(&own);
            own.make_calls(&received);
        })?;
        Ok(Self { calls, state })
    }
}

impl ThreadState {
    /// Makes calls until none comes, or until another thread has taken over.
    fn make_calls(&self, calls: &Receiver<FileCall>) {
        loop {
            match calls.recv_timeout(IDLE_LIMIT) {
                Ok(call) => {
                    self.cpu_at_start.store(own_cpu_micros(), Ordering::Relaxed);
                    call(self);
                }
                Err(RecvTimeoutError::Timeout) if self.is_idle.swap(false, Ordering::AcqRel) => return,
                // The owner is about to send a call.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// CPU time of the calling thread.
fn own_cpu_micros() -> u64 {
    let used = getrusage(UsageWho::RUSAGE_THREAD);
    used.map_or(0, |used| (used.user_time() + used.system_time()).num_microseconds().unsigned_abs())
}

/// CPU time of a thread of this process (`schedstat`, proc(5)).
fn cpu_time(thread: i32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Waits for the answer while the call computes: [`CallProgress::Running`] if `thread`, which makes the call, has used
/// less than [`MIN_CPU`] within `limit`.
fn wait_while_it_computes<T>(answer: &Receiver<T>, limit: Duration, thread: &ThreadState) -> CallProgress<T> {
    let mut last = None;
    loop {
        match answer.recv_timeout(limit) {
            Ok(answer) => return CallProgress::Returned(answer),
            Err(RecvTimeoutError::Disconnected) => return CallProgress::Lost,
            Err(RecvTimeoutError::Timeout) => {
                let began = || Duration::from_micros(thread.cpu_at_start.load(Ordering::Relaxed));
                let before = last.unwrap_or_else(began);
                match cpu_time(thread.id.load(Ordering::Relaxed)) {
                    Some(now) if now >= before + MIN_CPU => last = Some(now),
                    Some(_) | None => return CallProgress::Running,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/folder";

    fn thread_id() -> thread::ThreadId {
        thread::current().id()
    }

    /// A call that hangs until the sender is dropped.
    fn hanging_call() -> (Sender<()>, impl FnOnce() -> bool + Clone + Send + 'static) {
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        (release, move || released.lock().is_ok_and(|released| released.recv().is_ok()))
    }

    #[test]
    fn calls_in_a_row_run_on_one_thread() {
        let files = FileCalls::default();
        let first = files.run(Path::new(FOLDER), thread_id).unwrap();
        assert_ne!(first, thread_id());
        for _ in 0..100 {
            assert_eq!(files.run(Path::new(FOLDER), thread_id), Some(first));
            let started = files.start(|_| thread_id()).unwrap();
            assert_eq!(started.wait(Duration::from_secs(60)), Some(first));
        }
    }

    #[test]
    fn call_on_files_in_memory_runs_on_the_callers_thread() {
        let files = FileCalls::default();
        assert_ne!(files.run(Path::new(FOLDER), thread_id), Some(thread_id()));
        files.set_in_memory();
        assert_eq!(files.run(Path::new(FOLDER), thread_id), Some(thread_id()));
        let started = files.start(|_| thread_id()).unwrap();
        assert_eq!(started.progress(), CallProgress::Returned(thread_id()));
    }

    #[test]
    fn call_behind_a_hanging_one_gets_a_thread_of_its_own() {
        let (files, (release, hang)) = (FileCalls::default(), hanging_call());
        let hanging = files.start(|_| hang()).unwrap();
        assert_eq!(files.start(|_| 2).unwrap().wait(Duration::from_secs(60)), Some(2));
        assert_eq!(hanging.progress(), CallProgress::Running);
        drop(release);
        assert_eq!(hanging.wait(Duration::from_secs(60)), Some(false));
    }

    #[test]
    fn idle_thread_ends_and_the_next_call_starts_another() {
        let files = FileCalls::default();
        assert_eq!(files.run(Path::new(FOLDER), || 1), Some(1));
        let state = Arc::clone(&files.thread.lock().unwrap().as_ref().unwrap().state);
        let own_folder = format!("/proc/self/task/{}", state.id.load(Ordering::Relaxed));
        while Path::new(&own_folder).exists() {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(files.run(Path::new(FOLDER), || 2), Some(2));
    }

    #[test]
    fn call_that_computes_beyond_limit_is_waited_for() {
        let (sender, answer) = mpsc::channel();
        let files = FileCalls::default();
        let state = files.submit(Box::new(move |thread| {
            let own = thread.id.load(Ordering::Relaxed);
            while cpu_time(own).unwrap() < Duration::from_millis(600) {}
            sender.send(7).unwrap();
        }));
        let progress = wait_while_it_computes(&answer, Duration::from_millis(200), &state.unwrap());
        assert_eq!(progress, CallProgress::Returned(7));
    }

    #[test]
    fn call_that_hangs_after_a_long_one_hangs() {
        let (files, (release, hang)) = (FileCalls::default(), hanging_call());
        let compute = || while own_cpu_micros() < 20_000 {};
        assert_eq!(files.run(Path::new(FOLDER), compute), Some(()));
        let (sender, answer) = mpsc::channel();
        let state = files.submit(Box::new(move |_| sender.send(hang()).unwrap())).unwrap();
        let progress = wait_while_it_computes(&answer, Duration::from_millis(200), &state);
        assert_eq!(progress, CallProgress::Running);
        drop(release);
    }

    #[test]
    fn call_on_files_that_panics_leaves_file_system_usable() {
        let files = FileCalls::default();
        assert_eq!(files.run(Path::new(FOLDER), || -> u8 { panic!("as the test wants") }), None);
        assert_eq!(files.run(Path::new(FOLDER), || 2), Some(2));
    }

    #[test]
    fn silent_file_system_delays_once() {
        let (files, (release, hang)) = (FileCalls::default(), hanging_call());
        let folder = Path::new(FOLDER);
        assert_eq!(files.run(folder, || 1), Some(1));
        assert_eq!(files.run(folder, hang), None);
        assert_eq!(files.run(folder, || 2), None, "not asked again");
        files.retry();
        assert_eq!(files.run(folder, || 3), Some(3));
        drop(release);
    }
}
