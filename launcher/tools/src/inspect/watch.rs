//! `rankrun devices --watch`: probes the machine repeatedly, and draws each snapshot over the one before.
//!
//! Everything is one `poll`: keys, signals, the probes of the current look, and the time. So a library that hangs
//! does not delay keys or signals: the last good snapshot stays, and says that it is old.
#![expect(clippy::disallowed_methods, reason = "the clock says when to look again, and what time it is")]

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rankrun_core::posix::Signal;

use crate::explain::Style;
use rankrun_core::device::{CudaOrder, DeviceType, Machine};
use rankrun_core::exit_code::ExitStatus;
use rankrun_core::facts::Facts;
use rankrun_core::spec::{CliFlavor, SignalSpec};
use rankrun_host::process::probe::Probes;
use rankrun_host::process::signal::{self, HandledSignals, SignalInbox};
use rankrun_host::reporter::local_time::LocalTime;

use super::frame::{Header, Size, draw};
use super::page::Page;
use super::snapshot::MachineSnapshot;
use super::terminal::Terminal;
use super::{EVERYTHING, InspectError, devices, fact_text, second_probe, snapshot_of};

/// A look that takes longer is announced, with the time it has taken so far.
const SLOW_PROBE_NOTICE: Duration = Duration::from_secs(1);
/// How often to stop and wait for the foreground; a process group without a shell never gets it.
const FOREGROUND_TRIES: usize = 3;
/// Ctrl-D, which ends whatever is typed to.
const END_OF_INPUT: u8 = 4;
const ESCAPE: u8 = 0x1b;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WatchSubject<'a> {
    pub(super) kind: Option<DeviceType>,
    pub(super) ids: &'a [String],
    pub(super) every: Duration,
    /// How long a look may take.
    pub(super) limit: Duration,
}

/// An action of the loop: a key, a signal or a hangup asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchInput {
    Refresh,
    Resized,
    Suspended,
    End(ExitStatus),
}

struct ShownSnapshot {
    machine: Machine,
    page: Page,
    at: Instant,
}

#[derive(Default)]
struct DrawnScreen {
    shown: Option<ShownSnapshot>,
    /// The previous page, to mark changes.
    before: Option<Page>,
    /// The reason why the shown snapshot is not the newest.
    problem: Option<String>,
}

/// A look that is under way.
struct DeviceLookup {
    probes: Probes,
    since: Instant,
    /// The machine of the first look, if this is the second.
    first: Option<Machine>,
}

struct WatchLoop<'a> {
    watched: WatchSubject<'a>,
    facts: &'a Facts,
    style: Style,
    inbox: SignalInbox,
    handled: HandledSignals,
    terminal: Terminal,
    screen: DrawnScreen,
    lookup: Option<DeviceLookup>,
    next: Instant,
    cuda_order: CudaOrder,
}

/// Watches until a key or a signal ends it. The first look is taken before the terminal is switched, so the user
/// still sees the command and its messages while it runs.
///
/// # Errors
/// The terminal or the signals are refused.
pub(super) fn watch(
    watched: WatchSubject<'_>,
    facts: &Facts,
    style: Style,
) -> Result<ExitStatus, InspectError> {
    // The driver is asked once: it wakes every card.
    let cuda_order = OnceCell::new();
    let machine = second_probe::probe_with_retry(EVERYTHING, watched.limit, |ask, limit| {
        facts.world().probe_devices(ask, limit)
    });
    let ask = || cuda_order.get_or_init(|| facts.world().cuda_order(watched.limit)).clone();
    let first = snapshot_of(machine, facts, watched.kind, &ask).filter_ids(watched.ids)?;
    let spec = SignalSpec { forward: vec![Signal::SIGTSTP], ..SignalSpec::torchrun() };
    let handled = HandledSignals::of(&spec, CliFlavor::Rankrun);
    signal::block(&handled)?;
    let inbox = SignalInbox::open(&handled)?;
    let mut watch = WatchLoop {
        watched,
        facts,
        style,
        inbox,
        handled,
        terminal: Terminal::new()?,
        screen: DrawnScreen::default(),
        lookup: None,
        next: Instant::now() + watched.every,
        cuda_order: cuda_order.into_inner().unwrap_or_else(|| Err("it was not asked".to_owned())),
    };
    watch.screen.show(shown(first, watched));
    Ok(watch.run()?)
}

fn shown(snapshot: MachineSnapshot, watched: WatchSubject<'_>) -> ShownSnapshot {
    let page = devices::page(&snapshot, watched.kind);
    ShownSnapshot { machine: snapshot.machine, page, at: Instant::now() }
}

impl WatchLoop<'_> {
    fn run(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.wait_for_foreground()? {
            return Ok(status);
        }
        loop {
            self.advance();
            self.sleep()?;
            match self.next_input()? {
                Some(WatchInput::Refresh) => self.next = Instant::now(),
                Some(WatchInput::Resized) => self.draw(),
                Some(WatchInput::Suspended) => {
                    // Its time would run out while this process is stopped.
                    self.lookup = None;
                    self.terminal.leave();
                    signal::stop_self()?;
                    if let Some(status) = self.wait_for_foreground()? {
                        return Ok(status);
                    }
                }
                Some(WatchInput::End(status)) => return Ok(status),
                None => {}
            }
        }
    }

    /// Takes the terminal once this process is in its foreground. In the background this process stops, as every
    /// program that wants the terminal does; a signal to end it takes effect when it continues.
    fn wait_for_foreground(&mut self) -> io::Result<Option<ExitStatus>> {
        for _ in 0..FOREGROUND_TRIES {
            if let Some(WatchInput::End(status)) = read_signal(&self.inbox, &self.handled)? {
                return Ok(Some(status));
            }
            if self.terminal.is_in_foreground() {
                break;
            }
            signal::stop_self()?;
        }
        self.terminal.take()?;
        self.draw();
        Ok(None)
    }

    fn draw(&self) {
        let waited = self.lookup.as_ref().map(|lookup| (lookup.since.elapsed(), lookup));
        let waiting = waited.filter(|(waited, _)| *waited >= SLOW_PROBE_NOTICE).map(|(waited, lookup)| {
            format!("{} has not answered for {} s", lookup.probes.waiting_for(), waited.as_secs())
        });
        let bytes = self.screen.draw(self.watched, waiting, self.terminal.size(), self.style);
        self.terminal.write(&bytes);
    }

    /// Begins a look when it is time, and shows one that has come through.
    fn advance(&mut self) {
        let now = Instant::now();
        if self.lookup.is_none() && now >= self.next {
            let probes = Probes::discovery(EVERYTHING, self.watched.limit, now);
            self.lookup = Some(DeviceLookup { probes, since: now, first: None });
        }
        let Some(mut lookup) = self.lookup.take() else { return };
        if lookup.probes.advance(now) {
            let found = lookup.probes.into_machine();
            let machine = match lookup.first {
                None if second_probe::needs_retry(&found, EVERYTHING) => {
                    let (ask, limit) = (
                        second_probe::reduced_scope(EVERYTHING),
                        second_probe::retry_limit(self.watched.limit),
                    );
                    let probes = Probes::discovery(ask, limit, now);
                    self.lookup = Some(DeviceLookup { probes, since: lookup.since, first: Some(found) });
                    return;
                }
                None => found,
                Some(first) => second_probe::merge_probes(first, found, EVERYTHING),
            };
            let ask = || self.cuda_order.clone();
            // A missing device is not an error here: the snapshot then shows all remaining ones.
            let snapshot = snapshot_of(machine, self.facts, self.watched.kind, &ask);
            let snapshot = snapshot.clone().filter_ids(self.watched.ids).unwrap_or(snapshot);
            self.screen.show(shown(snapshot, self.watched));
            self.next = now + self.watched.every;
            self.draw();
        } else {
            let is_slow = now.duration_since(lookup.since) >= SLOW_PROBE_NOTICE;
            self.lookup = Some(lookup);
            if is_slow {
                self.draw();
            }
        }
    }

    /// Until there may be something to do.
    fn sleep(&self) -> io::Result<()> {
        let now = Instant::now();
        let mut fds = vec![PollFd::new(self.inbox.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.terminal.keys().map(|keys| PollFd::new(keys, PollFlags::POLLIN)));
        let until = match &self.lookup {
            Some(lookup) => {
                fds.extend(lookup.probes.as_fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
                lookup.probes.deadline().into_iter().chain([now + SLOW_PROBE_NOTICE]).min()
            }
            None => Some(self.next),
        };
        let remaining = until.map_or(SLOW_PROBE_NOTICE, |until| until.saturating_duration_since(now));
        // Rounded up: a millisecond too early would be a useless turn.
        let timeout = PollTimeout::try_from(remaining + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn next_input(&self) -> io::Result<Option<WatchInput>> {
        if let Some(event) = read_signal(&self.inbox, &self.handled)? {
            return Ok(Some(event));
        }
        Ok(self.terminal.keys().and_then(read_keys))
    }
}

impl DrawnScreen {
    /// Takes a new snapshot, unless the probe had a problem that the last one had not.
    fn show(&mut self, new: ShownSnapshot) {
        match &self.shown {
            Some(old) => {
                self.problem = new_problem(&new.machine, &old.machine);
                if self.problem.is_none() {
                    self.before = self.shown.replace(new).map(|old| old.page);
                }
            }
            None => self.shown = Some(new),
        }
    }

    fn draw(&self, watched: WatchSubject<'_>, waiting: Option<String>, size: Size, style: Style) -> Vec<u8> {
        let Some(shown) = &self.shown else { return Vec::new() };
        let now = LocalTime::of(SystemTime::now()).to_string().replace('_', " ");
        let title = format!("rankrun devices   every {} s   {now}   q ends", watched.every.as_secs_f64());
        let age = shown.at.elapsed().as_secs();
        let problem = waiting.or_else(|| self.problem.clone());
        let problem = problem.map(|text| format!("{text}; this snapshot is {age} s old"));
        draw(&Header { title, problem }, &shown.page, self.before.as_ref(), size, style)
    }
}

/// The problem that makes the new snapshot worse than the old one.
fn new_problem(new: &Machine, old: &Machine) -> Option<String> {
    let was_there = |source: &str| {
        let serious = old.troubles.iter().filter(|problem| fact_text::is_serious(problem));
        serious.map(|problem| problem.source.as_str()).any(|other| other == source)
    };
    let serious = new.troubles.iter().filter(|problem| fact_text::is_serious(problem));
    serious.filter(|problem| !was_there(&problem.source)).map(ToString::to_string).next()
}

fn read_signal(inbox: &SignalInbox, handled: &HandledSignals) -> io::Result<Option<WatchInput>> {
    let mut event = None;
    while let Some(number) = inbox.next()? {
        if handled.is_stop_signal(number) {
            return Ok(Some(WatchInput::End(ExitStatus::of_signal(number))));
        }
        match Signal::try_from(number) {
            Ok(Signal::SIGTSTP) => event = Some(WatchInput::Suspended),
            Ok(Signal::SIGWINCH) => event = event.or(Some(WatchInput::Resized)),
            // A probe has ended.
            _ => {}
        }
    }
    Ok(event)
}

/// The event of the typed keys; `None` for other keys.
fn read_keys(keys: BorrowedFd<'_>) -> Option<WatchInput> {
    let mut fds = [PollFd::new(keys, PollFlags::POLLIN)];
    if !matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..)) {
        return None;
    }
    let mut typed = [0; 64];
    match nix::unistd::read(keys, &mut typed) {
        Ok(count) if count > 0 => parse_keys(&typed[..count]),
        Err(Errno::EINTR | Errno::EAGAIN) => None,
        // The terminal has hung up.
        Ok(_) | Err(_) => Some(WatchInput::End(ExitStatus::of_signal(Signal::SIGHUP as i32))),
    }
}

fn parse_keys(typed: &[u8]) -> Option<WatchInput> {
    match typed {
        // An arrow, or a key of its kind.
        [ESCAPE, _, ..] => None,
        _ if typed.iter().any(|key| matches!(key, b'q' | b'Q' | &END_OF_INPUT)) => {
            Some(WatchInput::End(ExitStatus::SUCCESS))
        }
        _ if typed.iter().any(|key| matches!(key, b' ' | b'\n' | b'\r')) => Some(WatchInput::Refresh),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::device::{ProbeProblem, ProbeProblemKind};

    fn shown(text: &str, what: Option<ProbeProblemKind>) -> ShownSnapshot {
        let mut page = Page::default();
        page.line("key", &[("text", text, super::super::page::Tone::Plain)]);
        let problem = |what| ProbeProblem { kind: DeviceType::Cuda, source: "NVML".to_owned(), what };
        let machine = Machine { troubles: what.map(problem).into_iter().collect(), ..Machine::default() };
        ShownSnapshot { machine, page, at: Instant::now() }
    }

    fn is_shown(screen: &DrawnScreen, text: &str) -> bool {
        screen.shown.as_ref().is_some_and(|shown| shown.page == self::shown(text, None).page)
    }

    #[test]
    fn last_good_snapshot_stays_while_probe_hangs() {
        let mut screen = DrawnScreen::default();
        screen.show(shown("one", Some(ProbeProblemKind::Missing("no file".to_owned()))));
        screen.show(shown("two", Some(ProbeProblemKind::Hung(10))));
        assert!(is_shown(&screen, "one"));
        assert_eq!(screen.problem.as_deref(), Some("NVML did not answer within 10 seconds"));
        screen.show(shown("three", None));
        assert!(is_shown(&screen, "three") && screen.problem.is_none());
        assert!(screen.before.is_some_and(|page| page == shown("one", None).page));
    }

    #[test]
    fn existing_problem_does_not_block_new_snapshot() {
        let mut screen = DrawnScreen::default();
        screen.show(shown("one", Some(ProbeProblemKind::Hung(10))));
        screen.show(shown("two", Some(ProbeProblemKind::Crashed("SIGSEGV".to_owned()))));
        assert!(is_shown(&screen, "two") && screen.problem.is_none());
    }

    #[test]
    fn only_known_keys_are_handled() {
        let end = Some(WatchInput::End(ExitStatus::SUCCESS));
        for (typed, event) in [
            (&b"q"[..], end),
            (b"xQ", end),
            (b"\x04", end),
            (b" ", Some(WatchInput::Refresh)),
            (b"x", None),
            (b"\x1b[A", None),
            (b"\x1bOq", None),
            (b"\x1b", None),
        ] {
            assert_eq!(parse_keys(typed), event, "{typed:?}");
        }
    }
}
