//! Calls that may never return: a name server or a network file system does not answer. Each runs on another thread.
//! The caller polls its descriptor, or waits for a limited time; a call without an answer is left behind.

pub(crate) mod file_calls;
pub(crate) mod local_disk;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

/// A call on another thread.
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
    /// A call that waits for this alone.
    #[must_use]
    pub fn only(text: &str) -> Self {
        Self(Arc::new(Mutex::new(text.to_owned())))
    }

    /// The call is about to do this.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// What the call waits for.
    #[must_use]
    pub fn get(&self) -> String {
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

/// The other thread's end of a call. The owner wakes when this is dropped, also by a panic.
#[derive(Debug)]
pub struct CallAnswer<T> {
    sender: Sender<T>,
    step: CallStep,
    ended: Arc<EventFd>,
}

impl<T> CallAnswer<T> {
    /// Ends the call.
    pub fn send(self, answer: T) {
        // The owner may have given up.
        let _ = self.sender.send(answer);
    }
}

impl<T> Drop for CallAnswer<T> {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then it is readable.
        let _ = self.ended.write(1);
    }
}

impl<T: Send + 'static> BlockingCall<T> {
    /// Starts `call` on a new thread with this name. The thread inherits the signal mask.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub fn start(name: &str, call: impl FnOnce(&CallStep) -> T + Send + 'static) -> io::Result<Self> {
        let (started, answer) = Self::open(CallStep::default())?;
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = call(&answer.step);
            answer.send(result);
        })?;
        Ok(started)
    }

    /// A call that has not started, and its answer, for a thread that runs already.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open(step: CallStep) -> io::Result<(Self, CallAnswer<T>)> {
        let ended = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (sender, receiver) = mpsc::channel();
        let answer = CallAnswer { sender, step: step.clone(), ended: Arc::clone(&ended) };
        Ok((Self { answer: receiver, ended, step }, answer))
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
    pub fn wait(&self, limit: Duration) -> Option<T> {
        self.answer.recv_timeout(limit).ok()
    }
}

/// Calls `call` on a thread of its own, and returns its result to a task. If the task is dropped, the call continues
/// and its result is dropped. The runtime's own pool is not used: a call that hangs would hold up the end of the
/// runtime.
///
/// # Errors
/// No thread is left, or the call has panicked.
pub(crate) async fn call_on_thread<T: Send + 'static>(
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

/// Readable when the call has ended.
impl<T> AsFd for BlockingCall<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

/// True if reading `fd` would not wait.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
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
}
