//! Calls that may never return: a name server or a network file system does not answer. Each runs on a thread of its
//! own. The caller polls its descriptor, or waits for a limited time; a call without an answer is left behind.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::gettid;
use tokio::sync::oneshot;

/// A call on a thread of its own.
#[derive(Debug)]
pub struct BlockingCall<T> {
    answer: Receiver<T>,
    /// Readable when the call has ended.
    ended: Arc<EventFd>,
    step: CallStep,
}

/// What a call waits for, in words for the user. Shared by the call and its owner.
#[derive(Debug, Clone, Default)]
pub struct CallStep(Arc<Mutex<String>>);

impl CallStep {
    /// The call is about to do this.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How far a call has come.
#[derive(Debug, PartialEq, Eq)]
pub enum CallProgress<T> {
    /// It has not ended.
    Running,
    /// It has returned this.
    Returned(T),
    /// Its thread has panicked, or its answer was taken before.
    Lost,
}

/// Wakes the owner when the thread ends, also by a panic.
struct EndSignal(Arc<EventFd>);

impl Drop for EndSignal {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then it is readable.
        let _ = self.0.write(1);
    }
}

impl<T: Send + 'static> BlockingCall<T> {
    /// Starts `call` on a thread with this name. The thread inherits the signal mask.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub fn start(name: &str, call: impl FnOnce(&CallStep) -> T + Send + 'static) -> io::Result<Self> {
        let ended = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, answer) = mpsc::channel();
        let (step, signal) = (CallStep::default(), EndSignal(Arc::clone(&ended)));
        let steps = step.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _signal = signal;
            // The owner may have given up.
            let _ = sender.send(call(&steps));
        })?;
        Ok(Self { answer, ended, step })
    }

    /// The answer, if the call has ended.
    pub fn progress(&self) -> CallProgress<T> {
        match self.answer.try_recv() {
            Ok(answer) => CallProgress::Returned(answer),
            Err(TryRecvError::Empty) => CallProgress::Running,
            Err(TryRecvError::Disconnected) => CallProgress::Lost,
        }
    }

    /// What the call waits for; empty if it has not said so.
    #[must_use]
    pub fn step(&self) -> String {
        self.step.get()
    }

    /// Waits for the answer; `None` if there is none within `limit`.
    #[must_use]
    pub fn wait(self, limit: Duration) -> Option<T> {
        self.answer.recv_timeout(limit).ok()
    }

    /// Waits for the answer while the call computes: [`CallProgress::Running`] if `thread`, which makes the call, has
    /// used less than [`MIN_CPU`] within `limit`.
    fn wait_while_it_computes(self, limit: Duration, thread: &AtomicI32) -> CallProgress<T> {
        // The thread is new, and so is its CPU time.
        let mut last = Duration::ZERO;
        loop {
            match self.answer.recv_timeout(limit) {
                Ok(answer) => return CallProgress::Returned(answer),
                Err(RecvTimeoutError::Disconnected) => return CallProgress::Lost,
                Err(RecvTimeoutError::Timeout) => match cpu_time(thread.load(Ordering::Relaxed)) {
                    Some(now) if now >= last + MIN_CPU => last = now,
                    Some(_) | None => return CallProgress::Running,
                },
            }
        }
    }
}

/// Calls `call` on a thread of its own, and returns its result to a task. If the task is dropped, the call goes on and
/// its result is dropped. The runtime's own pool is not used: a call that hangs would hold up the end of the runtime.
///
/// # Errors
/// No thread is left, or the call has panicked.
pub async fn call_on_thread<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The task may be gone.
        let _ = sender.send(call());
    })?;
    result.await.map_err(|_| io::Error::other("its thread has ended"))
}

/// CPU time of a thread of this process (`schedstat`, proc(5)).
fn cpu_time(thread: i32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

/// Readable when the call has ended.
impl<T> AsFd for BlockingCall<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

/// True if reading `fd` would not wait.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Calls on files after a failure and at the end of the job. After one that had no answer in time the others are left
/// out, so that they delay the job once at most.
#[derive(Debug, Clone, Default)]
pub struct FileCalls {
    is_silent: Arc<AtomicBool>,
}

/// How long a call may use no CPU. A large report takes longer on a busy machine; it is read all the time.
const FILE_LIMIT: Duration = Duration::from_secs(2);
/// A call that has used less CPU hangs: starting it takes some of this.
const MIN_CPU: Duration = Duration::from_millis(1);

impl FileCalls {
    /// The result of `call` on files of `folder`; `None` if the file system does not answer, or the call panics.
    pub fn run<T: Send + 'static>(
        &self,
        folder: &Path,
        call: impl FnOnce() -> T + Clone + Send + 'static,
    ) -> Option<T> {
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let (on_thread, thread) = (call.clone(), Arc::new(AtomicI32::new(0)));
        let id = Arc::clone(&thread);
        let started = BlockingCall::start("files", move |_| {
            id.store(gettid().as_raw(), Ordering::Relaxed);
            on_thread()
        });
        let progress = match started {
            Ok(started) => started.wait_while_it_computes(FILE_LIMIT, &thread),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_until_readable<T>(call: &BlockingCall<T>) {
        poll(&mut [PollFd::new(call.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
    }

    #[test]
    fn ended_call_is_readable_and_returns_once() {
        let call = BlockingCall::start("test", |_| 7).unwrap();
        wait_until_readable(&call);
        assert_eq!(call.progress(), CallProgress::Returned(7));
        assert_eq!(BlockingCall::start("test", |_| 8).unwrap().wait(Duration::from_secs(60)), Some(8));
    }

    #[test]
    fn hanging_call_says_its_step_and_is_left_behind() {
        let (release, released) = mpsc::channel::<()>();
        let (entered, reached) = mpsc::channel();
        let call = BlockingCall::start("test", move |step| {
            step.set("a server".to_owned());
            entered.send(()).unwrap();
            released.recv()
        });
        let call = call.unwrap();
        reached.recv().unwrap();
        assert_eq!((call.progress(), call.step()), (CallProgress::Running, "a server".to_owned()));
        assert_eq!(call.wait(Duration::ZERO), None);
        drop(release);
    }

    #[test]
    fn call_that_panics_is_lost_and_wakes_its_owner() {
        let call = BlockingCall::<u8>::start("test", |_| panic!("as the test wants")).unwrap();
        wait_until_readable(&call);
        // The event comes before the channel's end.
        while call.progress() == CallProgress::Running {}
        assert_eq!(call.progress(), CallProgress::Lost);
    }

    #[test]
    fn call_that_computes_beyond_limit_is_waited_for() {
        let thread = Arc::new(AtomicI32::new(0));
        let id = Arc::clone(&thread);
        let call = BlockingCall::start("test", move |_| {
            let own = gettid().as_raw();
            id.store(own, Ordering::Relaxed);
            while cpu_time(own).unwrap() < Duration::from_millis(600) {}
            7
        });
        let progress = call.unwrap().wait_while_it_computes(Duration::from_millis(200), &thread);
        assert_eq!(progress, CallProgress::Returned(7));
    }

    #[test]
    fn call_on_files_that_panics_leaves_file_system_usable() {
        let files = FileCalls::default();
        assert_eq!(files.run(Path::new("/folder"), || -> u8 { panic!("as the test wants") }), None);
        assert_eq!(files.run(Path::new("/folder"), || 2), Some(2));
    }

    #[test]
    fn silent_file_system_delays_once() {
        let (release, released) = mpsc::channel::<()>();
        let (files, released) = (FileCalls::default(), Arc::new(Mutex::new(released)));
        let folder = Path::new("/folder");
        assert_eq!(files.run(folder, || 1), Some(1));
        let wait = move || released.lock().is_ok_and(|released| released.recv().is_ok());
        assert_eq!(files.run(folder, wait), None);
        assert_eq!(files.run(folder, || 2), None, "not asked again");
        files.retry();
        assert_eq!(files.run(folder, || 3), Some(3));
        drop(release);
    }
}
