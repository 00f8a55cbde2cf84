//! A thread that waits for sockets and times: one tokio `current_thread` runtime.
//!
//! Rules for its tasks: a step takes at most 20 ms, no step blocks, and none starts a process: only the main thread forks. A
//! thread is started when it is first needed, and so after the guard's fork: that process must have no other thread then.
//! Dropping an [`IoThread`] drops its tasks with their sockets.

pub(crate) mod kernel_timer;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Tasks between two looks at the sockets and the clock, at most.
const TASKS_PER_POLL: u32 = 16;

/// Reasons why an [`IoThread`] cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum IoThreadError {
    /// The runtime needs a few descriptors.
    #[error("cannot build the runtime of the thread `{name}`")]
    Runtime {
        /// The name of the thread.
        name: &'static str,
        /// The system's error for the call.
        source: io::Error,
    },
    /// The system starts no further thread.
    #[error("cannot start the thread `{name}`")]
    Thread {
        /// The name of the thread.
        name: &'static str,
        /// The system's error for the call.
        source: io::Error,
    },
}

impl IoThreadError {
    /// Advice for the user, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        let (Self::Runtime { source, .. } | Self::Thread { source, .. }) = self;
        match source.raw_os_error()? {
            libc::EMFILE => Some("too many files are open: raise the limit with `ulimit -n`"),
            libc::ENFILE => {
                Some("this machine has too many open files: close programs, or raise `fs.file-max`")
            }
            libc::EAGAIN => crate::process::process_limit_hint(source),
            libc::ENOMEM => Some("this machine has too little free memory"),
            _ => None,
        }
    }
}

/// A running thread and its runtime.
#[derive(Debug)]
pub(crate) struct IoThread {
    runtime: Handle,
    /// The thread ends when this is dropped.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl IoThread {
    /// Starts a thread with the caller's signal mask. The kernel shows 15 bytes of its name.
    ///
    /// # Errors
    /// The runtime cannot be built, or the thread cannot be started.
    pub(crate) fn start(name: &'static str) -> Result<Self, IoThreadError> {
        // Built here, so that the caller need not wait for the thread to hear of a failure.
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .event_interval(TASKS_PER_POLL)
            .build()
            .map_err(|source| IoThreadError::Runtime { name, source })?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run_until(&runtime, stopped))
            .map_err(|source| IoThreadError::Thread { name, source })?;
        Ok(Self { runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the calling thread, which waits; the thread of the runtime only watches its sockets and its clock.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Starts a task on the thread. Callable from any thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }
}

impl Drop for IoThread {
    /// Waits until all tasks are dropped. A task must not own the thread that runs it.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Runs the tasks of `runtime`. They are dropped with the runtime, on this thread.
fn run_until(runtime: &Runtime, stopped: oneshot::Receiver<Infallible>) {
    // The sender sends nothing: the channel only closes.
    let _ = runtime.block_on(stopped);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn spawned_task_runs_on_named_thread() {
        let io_thread = IoThread::start("rankrun-test").unwrap();
        let (sender, names) = mpsc::channel();
        io_thread.spawn(async move {
            tokio::task::yield_now().await;
            sender.send(thread::current().name().map(str::to_owned)).unwrap();
        });
        assert_eq!(names.recv().unwrap().as_deref(), Some("rankrun-test"));
    }

    #[test]
    fn future_of_another_thread_has_timers() {
        let io_thread = IoThread::start("rankrun-test").unwrap();
        let caller = thread::current().id();
        let ran_on = io_thread.block_on(async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            thread::current().id()
        });
        assert_eq!(ran_on, caller);
    }

    #[test]
    fn dropped_thread_drops_waiting_tasks() {
        let io_thread = IoThread::start("rankrun-test").unwrap();
        let (sender, receiver) = mpsc::channel();
        let (begun, begins) = mpsc::channel();
        io_thread.spawn(async move {
            let _held = sender;
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        begins.recv().unwrap();
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(io_thread);
        assert_eq!(receiver.try_recv(), Err::<(), _>(mpsc::TryRecvError::Disconnected));
    }

    #[test]
    fn thread_errors_have_hints_by_cause() {
        let error =
            |errno| IoThreadError::Runtime { name: "io", source: io::Error::from_raw_os_error(errno) };
        assert_eq!(error(libc::EMFILE).to_string(), "cannot build the runtime of the thread `io`");
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(error(errno).hint().is_some(), "{errno}");
        }
    }
}
