//! Copies the workers' output: unchanged to their log files, in whole lines to one output of the launcher.
//!
//! There is one thread for each output, started with the first workers that have captured streams. It reads only as
//! fast as the output takes the bytes: pipes fill up, and the workers wait as they would have for the output itself.

#![expect(clippy::disallowed_methods, reason = "reads the clock for the screen, which is pure")]

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use rankrun_contract::rank::Generation;

use super::channel::{CAPACITY, size_beside_label};
use super::latch::Completion;
use super::source::{ReadResult, StreamSource};
use crate::console::{Output, WriteError};
use rankrun_core::screen::{Screen, StreamId};

/// Bytes that the output gets at once.
const FLUSH: usize = 64 * 1024;
/// Time in which small writes are gathered into one, in milliseconds.
const GATHER_MS: u8 = 1;
/// Rounds of small writes without a pause before gathering begins. The first ones are passed on at once, so lines that
/// workers write in turn keep their order.
const MAX_UNGATHERED_ROUNDS: u32 = 16;
/// The most bytes that a pipe may hold when its worker has ended; later bytes are not the worker's.
const DRAIN_LIMIT: usize = 1024 * 1024;
/// The token of the wake-up descriptor; sources count from 0.
const WAKE: u64 = u64::MAX;

#[derive(Debug)]
pub(super) enum PumpCommand {
    Open(StreamSource),
    /// The workers of this generation have been reaped: read their remaining output, then answer.
    Ended(Generation, Completion),
    /// A worker of this generation has been reaped: read what is there of all, then answer.
    CatchUp(Generation, Completion),
    /// All workers have been reaped: read the remaining output, end, then answer.
    Finish(Completion),
    /// The launcher's terminal has changed its size.
    Resize,
}

/// The agent's end of a pump.
#[derive(Debug)]
pub(super) struct PumpHandle {
    commands: Sender<PumpCommand>,
    wake: Arc<EventFd>,
    waiting: Option<Receiver<PumpCommand>>,
}

impl PumpHandle {
    pub(super) fn new() -> Result<Self, Errno> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (commands, waiting) = mpsc::channel();
        Ok(Self { commands, wake: Arc::new(wake), waiting: Some(waiting) })
    }

    /// Starts the thread unless it runs.
    pub(super) fn start(&mut self, output: &Arc<Output>) -> std::io::Result<()> {
        let Some(commands) = self.waiting.take() else { return Ok(()) };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&*self.wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let (output, wake) = (Arc::clone(output), Arc::clone(&self.wake));
        let run = move || {
            // Signals are for the agent's thread; a blocked SIGTTOU also permits writes from the background.
            let _ = SigSet::all().thread_block();
            if let Some((screen, unwritten)) = output.attach(Arc::clone(&wake)) {
                Pump::new(PumpChannels { output, wake, epoll, commands }, screen, unwritten).run();
            }
        };
        std::thread::Builder::new().name("rankrun-logs".to_owned()).spawn(run)?;
        Ok(())
    }

    pub(super) fn send(&self, command: PumpCommand) {
        // Both fail only when the pump has ended, and then no work is left.
        let _ = self.commands.send(command);
        let _ = self.wake.write(1);
    }
}

/// The channels between a pump and its owner.
struct PumpChannels {
    output: Arc<Output>,
    wake: Arc<EventFd>,
    epoll: Epoll,
    commands: Receiver<PumpCommand>,
}

struct Pump {
    channels: PumpChannels,
    screen: Screen,
    sources: HashMap<u64, (StreamId, StreamSource)>,
    next_token: u64,
    buffer: Vec<u8>,
    out: Vec<u8>,
    health: OutputHealth,
    pace: ReadRate,
    /// Rounds of small writes since the last pause of a millisecond.
    rounds: u32,
    /// The only stream that is read, while it has the exclusive right to the output.
    exclusive_stream: Option<StreamId>,
}

/// The result of the last round of reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReadRate {
    Idle,
    Trickle,
    Flood,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputHealth {
    Good,
    /// Some bytes were lost, and this was said.
    Lossy,
    /// The output has no reader any more.
    Closed,
}

impl Pump {
    fn new(ends: PumpChannels, screen: Screen, unwritten: Vec<u8>) -> Self {
        Self {
            channels: ends,
            screen,
            sources: HashMap::new(),
            next_token: 0,
            buffer: vec![0; CAPACITY.unsigned_abs() as usize],
            out: unwritten,
            health: OutputHealth::Good,
            pace: ReadRate::Idle,
            rounds: 0,
            exclusive_stream: None,
        }
    }

    fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let finished = loop {
            let round_start = Instant::now();
            let count = self.channels.epoll.wait(&mut events, self.timeout()).unwrap_or(0);
            if round_start.elapsed() >= Duration::from_millis(u64::from(GATHER_MS)) {
                self.rounds = 0;
            }
            self.pace = ReadRate::Idle;
            for event in &events[..count] {
                if event.data() == WAKE {
                    // It was only there to end the wait.
                    let _ = self.channels.wake.read();
                } else if self.read(event.data()) == ReadResult::End {
                    self.close(event.data());
                }
            }
            let finished = self.drain_commands();
            // First, since a message takes its time from it.
            self.screen.show_due(Instant::now(), self.pace != ReadRate::Idle, &mut self.out);
            for text in self.channels.output.take_messages() {
                self.screen.message(&text, &mut self.out);
            }
            self.screen.draw_due(Instant::now(), &mut self.out);
            self.flush();
            if let Some(finished) = finished {
                break finished;
            }
            self.update_exclusive_stream();
            if self.pace == ReadRate::Trickle {
                self.rounds = self.rounds.saturating_add(1);
                if self.rounds > MAX_UNGATHERED_ROUNDS {
                    self.wait_for_more_input();
                }
            }
        };
        self.channels.output.detach(self.screen);
        drop(finished);
    }

    /// After small reads: waits for more bytes, or for a command. A wake-up for each line would cost the pump and the
    /// worker more than the line itself.
    fn wait_for_more_input(&self) {
        let mut wake = [PollFd::new(self.channels.wake.as_fd(), PollFlags::POLLIN)];
        // Whatever ends it, we go on.
        let _ = poll(&mut wake, PollTimeout::from(GATHER_MS));
    }

    /// Where lines take much memory, all but one stream must wait until that one has finished its line.
    fn update_exclusive_stream(&mut self) {
        // Without a reader the screen holds no stream back.
        let exclusive = self.screen.exclusive_stream().filter(|_| self.health != OutputHealth::Closed);
        if exclusive == self.exclusive_stream {
            return;
        }
        self.exclusive_stream = exclusive;
        for (&token, (stream, source)) in &self.sources {
            let is_enabled = exclusive.is_none_or(|floor| floor == *stream);
            let events = if is_enabled { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
            // Is watched.
            let _ = self.channels.epoll.modify(&source.channel.reader, &mut EpollEvent::new(events, token));
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let Some(deadline) = self.screen.deadline() else { return EpollTimeout::NONE };
        let remaining = deadline.saturating_duration_since(Instant::now());
        // Rounded up: an early wake-up would find nothing to do.
        let millis = remaining.as_micros().div_ceil(1000);
        EpollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
    }

    /// Executes the waiting commands; returns the promise of `Finish`, which ends the pump.
    fn drain_commands(&mut self) -> Option<Completion> {
        while let Ok(command) = self.channels.commands.try_recv() {
            match command {
                PumpCommand::Open(source) => self.open(source),
                PumpCommand::Ended(generation, done) => {
                    self.drain_and_close(|source| source.generation == generation);
                    drop(done);
                }
                PumpCommand::CatchUp(generation, done) => {
                    self.catch_up(generation);
                    drop(done);
                }
                PumpCommand::Finish(done) => {
                    self.drain_and_close(|_| true);
                    return Some(done);
                }
                PumpCommand::Resize => self.resize(),
            }
        }
        None
    }

    fn open(&mut self, source: StreamSource) {
        if self.health == OutputHealth::Closed && source.file.is_none() {
            return;
        }
        let token = self.next_token;
        self.next_token += 1;
        if let Err(error) =
            self.channels.epoll.add(&source.channel.reader, EpollEvent::new(EpollFlags::EPOLLIN, token))
        {
            tracing::error!(%error, "cannot watch the output of a worker");
            return;
        }
        let names = (&*source.prefix, source.label.as_deref());
        let stream_id = self.screen.add(names, source.channel.full_threshold, Instant::now());
        if source.can_prompt {
            self.screen.allow_prompts(stream_id);
        }
        self.sources.insert(token, (stream_id, source));
    }

    fn close(&mut self, token: u64) {
        if let Some((stream_id, source)) = self.sources.remove(&token) {
            unwatch(&self.channels.epoll, &source);
            self.screen.end(stream_id, &mut self.out);
            source.end();
        }
    }

    /// Reads the sources to their end, or a limited amount if another process still writes to them, and closes them.
    fn drain_and_close(&mut self, chosen: impl Fn(&StreamSource) -> bool) {
        let mut tokens: Vec<u64> =
            self.sources.iter().filter(|(_, (_, source))| chosen(source)).map(|(&token, _)| token).collect();
        tokens.sort_unstable();
        for token in tokens {
            let mut drained = 0;
            while let ReadResult::Some(count) = self.read(token) {
                drained += count;
                if drained > DRAIN_LIMIT {
                    break;
                }
            }
            self.close(token);
        }
        self.flush();
    }

    /// Reads what the pipes of a generation hold at most.
    fn catch_up(&mut self, generation: Generation) {
        let of = |(&token, (_, source)): (&u64, &(StreamId, StreamSource))| {
            (source.generation == generation).then_some(token)
        };
        let tokens: Vec<u64> = self.sources.iter().filter_map(of).collect();
        for token in tokens {
            let mut unread = CAPACITY.unsigned_abs() as usize;
            while unread > 0
                && let ReadResult::Some(count) = self.read(token)
            {
                unread = unread.saturating_sub(count);
            }
        }
    }

    /// Reads one chunk and passes it on.
    fn read(&mut self, token: u64) -> ReadResult {
        let Some((stream_id, source)) = self.sources.get_mut(&token) else { return ReadResult::End };
        let read = source.read(&mut self.buffer);
        let ReadResult::Some(count) = read else { return read };
        let (bytes, now) = (&self.buffer[..count], Instant::now());
        source.store(bytes, now);
        self.pace = self.pace.max(if count < source.channel.full_threshold / 4 {
            ReadRate::Trickle
        } else {
            ReadRate::Flood
        });
        if self.health != OutputHealth::Closed {
            self.screen.feed(*stream_id, bytes, now, &mut self.out);
            if self.out.len() >= FLUSH {
                self.flush();
            }
        }
        read
    }

    fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let written = self.channels.output.write(&self.out);
        self.out.clear();
        // After a line of megabytes.
        self.out.shrink_to(4 * FLUSH);
        match written {
            Ok(()) => {}
            Err(WriteError::NoReader) => {
                self.health = OutputHealth::Closed;
                // The workers must see the closed output, as they would without the pump.
                for (_, (_, source)) in self.sources.extract_if(|_, (_, source)| source.file.is_none()) {
                    unwatch(&self.channels.epoll, &source);
                }
            }
            Err(error @ WriteError::Lost(_)) if self.health == OutputHealth::Good => {
                self.health = OutputHealth::Lossy;
                tracing::error!(%error, "output of the workers is lost");
            }
            Err(WriteError::Lost(_)) => {}
        }
    }

    fn resize(&mut self) {
        self.screen.resize(self.channels.output.screen_kind());
        let Some(size) = self.channels.output.size() else { return };
        for (_, source) in self.sources.values() {
            source.channel.resize(size_beside_label(size, source.label.as_deref()));
        }
    }
}

/// Closing would not do: a worker between fork and exec has the descriptor too, and as long as it does, the set
/// reports it.
fn unwatch(epoll: &Epoll, source: &StreamSource) {
    // Was watched, or is about to be closed anyway.
    let _ = epoll.delete(&source.channel.reader);
}
