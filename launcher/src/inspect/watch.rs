//! `rankrun devices --watch`: looks again and again, and draws each picture over the one before.
//!
//! Between two looks it sleeps in `poll` until a key, a signal or the next look is due. A look is a child with a
//! deadline: while that hangs, keys wait, and Ctrl-C ends both.
#![expect(clippy::disallowed_methods, reason = "the clock says when to look again, and what time it is")]

use std::cell::OnceCell;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::device::{DeviceType, Machine};
use crate::exit_code::ExitStatus;
use crate::explain::Style;
use crate::facts::Facts;
use crate::process::signal::{self, HandledSignals, SignalInbox};
use crate::reporter::local_time::LocalTime;
use crate::spec::{Persona, SignalSpec};

use super::frame::{Header, draw};
use super::page::Page;
use super::terminal::Terminal;
use super::{LIMIT, devices, take, words};

/// Ctrl-D, which ends whatever is typed to.
const END_OF_INPUT: u8 = 4;
const ESCAPE: u8 = 0x1b;

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Subject {
    pub(super) kind: Option<DeviceType>,
    pub(super) every: Duration,
}

/// What ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// It is time to look again, or somebody asks for it.
    Look,
    /// The terminal has another size.
    Resized,
    /// Ctrl-Z.
    Suspended,
    /// Enough.
    End(ExitStatus),
}

/// A picture that came through.
struct Shown {
    machine: Machine,
    page: Page,
    at: Instant,
}

/// What stands on the terminal.
#[derive(Default)]
struct Screen {
    shown: Option<Shown>,
    /// What is compared with what is shown.
    before: Option<Page>,
    /// Why what is shown is not the newest.
    trouble: Option<String>,
}

/// Watches until somebody has seen enough.
///
/// # Errors
/// The terminal or the signals are refused.
pub(super) fn watch(subject: Subject, facts: &Facts, style: Style) -> io::Result<ExitStatus> {
    let spec = SignalSpec { forward: vec![Signal::SIGTSTP], ..SignalSpec::torchrun() };
    let handled = HandledSignals::of(&spec, Persona::Rankrun);
    signal::block(&handled)?;
    let inbox = SignalInbox::open(&handled)?;
    let cuda_order = OnceCell::new();
    let cuda_order = || cuda_order.get_or_init(|| facts.world().cuda_order(LIMIT)).clone();
    let mut terminal = Terminal::enter()?;
    let mut screen = Screen::default();
    terminal.write(&screen.draw(subject, terminal.size(), style));
    loop {
        let picture = take(facts, subject.kind, &cuda_order);
        let page = devices::page(&picture, subject.kind);
        screen.show(Shown { machine: picture.machine, page, at: Instant::now() });
        let next = Instant::now() + subject.every;
        loop {
            terminal.write(&screen.draw(subject, terminal.size(), style));
            match wait(&terminal, (&inbox, &handled), next)? {
                Event::Look => break,
                Event::Resized => {}
                Event::Suspended => terminal.suspend()?,
                Event::End(status) => return Ok(status),
            }
        }
    }
}

impl Screen {
    /// Takes a new picture, unless the probe that made it had trouble which that of the last one had not.
    fn show(&mut self, new: Shown) {
        match &self.shown {
            Some(old) => {
                self.trouble = what_went_wrong(&new.machine, &old.machine);
                if self.trouble.is_none() {
                    self.before = self.shown.replace(new).map(|old| old.page);
                }
            }
            None => self.shown = Some(new),
        }
    }

    fn draw(&self, subject: Subject, size: super::frame::Size, style: Style) -> Vec<u8> {
        let now = LocalTime::of(SystemTime::now()).to_string().replace('_', " ");
        let title = format!("rankrun devices   every {} s   {now}   q ends", subject.every.as_secs_f64());
        let (nothing, looking) = (Page::default(), "looking …".to_owned());
        match &self.shown {
            Some(shown) => {
                let age = shown.at.elapsed().as_secs();
                let trouble = self.trouble.as_ref().map(|why| format!("{why}; this picture is {age} s old"));
                let header = Header { title, trouble };
                draw(&header, &shown.page, self.before.as_ref(), size, style)
            }
            None => draw(&Header { title, trouble: Some(looking) }, &nothing, None, size, style),
        }
    }
}

/// What keeps the new picture from being as good as the old one.
fn what_went_wrong(new: &Machine, old: &Machine) -> Option<String> {
    let was_there = |source: &str| {
        let serious = old.troubles.iter().filter(|trouble| words::is_serious(trouble));
        serious.map(|trouble| trouble.source.as_str()).any(|other| other == source)
    };
    let serious = new.troubles.iter().filter(|trouble| words::is_serious(trouble));
    serious.filter(|trouble| !was_there(&trouble.source)).map(words::trouble).next()
}

fn wait(
    terminal: &Terminal,
    (inbox, handled): (&SignalInbox, &HandledSignals),
    until: Instant,
) -> io::Result<Event> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = vec![PollFd::new(inbox.as_fd(), PollFlags::POLLIN)];
        fds.extend(terminal.keys().map(|keys| PollFd::new(keys, PollFlags::POLLIN)));
        // One more millisecond than asked for: never woken before the time.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) if Instant::now() >= until => return Ok(Event::Look),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let typed = fds.get(1).and_then(PollFd::any).unwrap_or(false);
        if let Some(event) = signalled(inbox, handled)? {
            return Ok(event);
        }
        if let Some(event) = terminal.keys().filter(|_| typed).and_then(read_keys) {
            return Ok(event);
        }
    }
}

fn signalled(inbox: &SignalInbox, handled: &HandledSignals) -> io::Result<Option<Event>> {
    let mut event = None;
    while let Some(number) = inbox.next()? {
        if handled.stops(number) {
            return Ok(Some(Event::End(ExitStatus::of_signal(number))));
        }
        match Signal::try_from(number) {
            Ok(Signal::SIGTSTP) => event = Some(Event::Suspended),
            Ok(Signal::SIGWINCH) => event = event.or(Some(Event::Resized)),
            // A probe has ended.
            _ => {}
        }
    }
    Ok(event)
}

/// What was typed; nothing where that means nothing to us.
fn read_keys(keys: std::os::fd::BorrowedFd<'_>) -> Option<Event> {
    let mut typed = [0; 64];
    match nix::unistd::read(keys, &mut typed) {
        Ok(count) if count > 0 => meaning(&typed[..count]),
        Err(Errno::EINTR | Errno::EAGAIN) => None,
        // Nobody is there any more.
        Ok(_) | Err(_) => Some(Event::End(ExitStatus::of_signal(Signal::SIGHUP as i32))),
    }
}

fn meaning(typed: &[u8]) -> Option<Event> {
    match typed {
        // An arrow, or a key of its kind.
        [ESCAPE, _, ..] => None,
        _ if typed.iter().any(|key| matches!(key, b'q' | b'Q' | &END_OF_INPUT)) => {
            Some(Event::End(ExitStatus::SUCCESS))
        }
        _ if typed.iter().any(|key| matches!(key, b' ' | b'\n' | b'\r')) => Some(Event::Look),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Trouble, TroubleKind};

    fn shown(text: &str, what: Option<TroubleKind>) -> Shown {
        let mut page = Page::default();
        page.line("key", &[("text", text, super::super::page::Tone::Plain)]);
        let trouble = |what| Trouble { kind: DeviceType::Cuda, source: "NVML".to_owned(), what };
        let machine = Machine { troubles: what.map(trouble).into_iter().collect(), ..Machine::default() };
        Shown { machine, page, at: Instant::now() }
    }

    fn is_shown(screen: &Screen, text: &str) -> bool {
        screen.shown.as_ref().is_some_and(|shown| shown.page == self::shown(text, None).page)
    }

    #[test]
    fn the_last_good_picture_stays_while_a_probe_hangs() {
        let mut screen = Screen::default();
        screen.show(shown("one", Some(TroubleKind::Missing("no file".to_owned()))));
        screen.show(shown("two", Some(TroubleKind::Hung(10))));
        assert!(is_shown(&screen, "one"));
        assert_eq!(screen.trouble.as_deref(), Some("NVML did not answer in 10 s"));
        screen.show(shown("three", None));
        assert!(is_shown(&screen, "three") && screen.trouble.is_none());
        assert!(screen.before.is_some_and(|page| page == shown("one", None).page));
    }

    #[test]
    fn a_trouble_that_was_always_there_keeps_no_picture_away() {
        let mut screen = Screen::default();
        screen.show(shown("one", Some(TroubleKind::Hung(10))));
        screen.show(shown("two", Some(TroubleKind::Crashed("SIGSEGV".to_owned()))));
        assert!(is_shown(&screen, "two") && screen.trouble.is_none());
    }

    #[test]
    fn only_some_keys_mean_something() {
        let end = Some(Event::End(ExitStatus::SUCCESS));
        for (typed, event) in [
            (&b"q"[..], end),
            (b"xQ", end),
            (b"\x04", end),
            (b" ", Some(Event::Look)),
            (b"x", None),
            (b"\x1b[A", None),
            (b"\x1bOq", None),
            (b"\x1b", None),
        ] {
            assert_eq!(meaning(typed), event, "{typed:?}");
        }
    }
}
