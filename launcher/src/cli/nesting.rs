//! How deep launches of one entrypoint stand inside one another: a guard against a script that starts itself without
//! end.
//!
//! `RANKRUN_NESTING` is `PID:ENTRYPOINT=COUNT,…`: the launcher that wrote it, and for each entrypoint how many launches
//! are above the reader. An entrypoint is written as a checksum, since a path may hold any character. The counts hold
//! only inside that launcher: `sbatch` and `at` hand the environment of a worker on to jobs that are not inside it.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rankrun_contract::env::{NESTING, RUN_ID};

use super::error::CliError;
use rankrun_core::facts::Facts;
use rankrun_core::rendezvous::keys::checksum;
use rankrun_core::spec::Entrypoint;

/// More launches of one entrypoint inside one another are refused.
const MOST: u32 = 3;
/// The environment does not grow without end: the oldest entrypoint is forgotten first.
const MOST_ENTRYPOINTS: usize = 32;

/// `RANKRUN_NESTING` for the workers of this entrypoint.
///
/// # Errors
/// [`MOST`] launches of the entrypoint are above this one.
pub(super) fn resolve_nesting(entrypoint: &Entrypoint, facts: &Facts) -> Result<String, CliError> {
    let inherited = facts.variable(NESTING).and_then(OsStr::to_str).and_then(Nesting::parse);
    let above = inherited.filter(|nesting| facts.world().descends_from(nesting.launcher));
    let mut nesting = above.unwrap_or_default();
    let (identity, typed) = identify(entrypoint, facts);
    let depth = nesting.enter(identity);
    if depth > MOST {
        let entrypoint = typed.to_string_lossy().into_owned();
        let message = format!(
            "the entrypoint `{entrypoint}` starts itself: this launch is inside {} launches of it, each inside the one \
             before (`RANKRUN_NESTING`)",
            depth - 1
        );
        let hint = format!(
            "let `{entrypoint}` start no launcher on itself; where it is meant, start that launcher with \
             `env -u RANKRUN_NESTING`"
        );
        return Err(CliError::refused(message, hint));
    }
    nesting.launcher = facts.world().process_id();
    Ok(nesting.render())
}

/// Whether a worker started this launcher. The variables alone do not say it: `srun` hands the variables of a worker
/// on.
pub(super) fn is_inside_worker(facts: &Facts) -> bool {
    match facts.variable(NESTING).and_then(OsStr::to_str).and_then(Nesting::parse) {
        Some(nesting) => facts.world().descends_from(nesting.launcher),
        // torchrun leaves no such trace.
        None => facts.variable(RUN_ID).is_some(),
    }
}

/// What tells entrypoints apart, and the entrypoint as it was typed.
fn identify<'a>(entrypoint: &'a Entrypoint, facts: &Facts) -> (u128, &'a OsStr) {
    let of_file = |path: &Path| {
        let file = facts.world().resolve_links(&facts.absolute(path));
        checksum([file.as_os_str().as_bytes()])
    };
    match entrypoint {
        Entrypoint::Script { script, .. } | Entrypoint::RunPath { script, .. } => {
            (of_file(Path::new(script)), script)
        }
        Entrypoint::Program { path, name } => (of_file(path), name),
        Entrypoint::Module { module, .. } => (checksum([&b"-m"[..], module.as_bytes()]), module),
    }
}

/// The launches above a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Nesting {
    /// The innermost launcher.
    launcher: u32,
    /// How often each entrypoint is launched; the last one was added last.
    counts: Vec<(u128, u32)>,
}

impl Nesting {
    /// Nothing where the text has another form.
    fn parse(text: &str) -> Option<Self> {
        let (launcher, counts) = text.split_once(':')?;
        let count = |item: &str| {
            let (identity, count) = item.split_once('=')?;
            Some((u128::from_str_radix(identity, 16).ok()?, count.parse().ok()?))
        };
        let counts: Vec<_> = counts.split(',').map(count).collect::<Option<_>>()?;
        Some(Self { launcher: launcher.parse().ok()?, counts })
    }

    /// One launch more of this entrypoint; how many that makes.
    fn enter(&mut self, identity: u128) -> u32 {
        match self.counts.iter_mut().find(|(known, _)| *known == identity) {
            Some((_, count)) => {
                *count = count.saturating_add(1);
                *count
            }
            None => {
                let superfluous = (self.counts.len() + 1).saturating_sub(MOST_ENTRYPOINTS);
                self.counts.drain(..superfluous);
                self.counts.push((identity, 1));
                1
            }
        }
    }

    fn render(&self) -> String {
        let mut text = self.launcher.to_string();
        for (at, (identity, count)) in self.counts.iter().enumerate() {
            let separator = if at == 0 { ':' } else { ',' };
            write!(text, "{separator}{identity:032x}={count}").expect("a string takes any text");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::facts::fake::FakeWorld;

    const SCRIPT: &str = "/job/train";

    fn program(path: &str) -> Entrypoint {
        Entrypoint::Program { path: path.into(), name: path.into() }
    }

    fn nesting(world: FakeWorld, inherited: &str, path: &str) -> Result<String, CliError> {
        resolve_nesting(&program(path), &world.facts(&[(NESTING, inherited)]))
    }

    /// What the workers of a launch inside `launches` others get.
    fn inside(launches: u32, path: &str) -> Result<String, CliError> {
        (0..launches).try_fold(String::new(), |inherited, _| nesting(FakeWorld::default(), &inherited, path))
    }

    #[test]
    fn fourth_launch_of_one_entrypoint_is_refused() {
        assert!(inside(3, SCRIPT).unwrap().ends_with("=3"));
        let error = inside(4, SCRIPT).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{SCRIPT}` starts itself: this launch is inside 3 launches")),
            "{error}"
        );
    }

    #[test]
    fn each_entrypoint_has_its_own_count() {
        let three = inside(3, SCRIPT).unwrap();
        let four = nesting(FakeWorld::default(), &three, "/job/eval").unwrap();
        assert!(four.contains("=3,") && four.ends_with("=1"), "{four}");
        assert!(nesting(FakeWorld::default(), &four, "/job/eval").unwrap().ends_with("=2"));
        assert!(nesting(FakeWorld::default(), &four, SCRIPT).is_err());
    }

    #[test]
    fn links_to_one_file_are_one_entrypoint() {
        let three = inside(3, SCRIPT).unwrap();
        assert!(nesting(FakeWorld::default().link("/job/other", SCRIPT), &three, "/job/other").is_err());
    }

    #[test]
    fn nesting_count_restarts_outside_launcher() {
        let three = inside(3, SCRIPT).unwrap();
        assert!(nesting(FakeWorld::default().elsewhere(), &three, SCRIPT).unwrap().ends_with("=1"));
    }

    #[test]
    fn worker_is_detected_by_ancestor_launcher() {
        let is_inside = |world: FakeWorld, environment: &[_]| is_inside_worker(&world.facts(environment));
        assert!(is_inside(FakeWorld::default(), &[(NESTING, "1:0=1"), (RUN_ID, "none")]));
        assert!(!is_inside(FakeWorld::default().elsewhere(), &[(NESTING, "1:0=1"), (RUN_ID, "none")]));
        assert!(is_inside(FakeWorld::default().elsewhere(), &[(RUN_ID, "none")]));
        assert!(!is_inside(FakeWorld::default(), &[]));
    }

    #[test]
    fn invalid_nesting_variable_is_ignored() {
        for text in ["", "1", "1:", ":", "x:0=1", "1:0=1,", "1:zz=9", "1:0=-1", "1:0"] {
            assert!(nesting(FakeWorld::default(), text, SCRIPT).unwrap().ends_with("=1"), "{text}");
        }
    }

    #[test]
    fn number_of_counted_entrypoints_is_limited() {
        let last = (0..100).try_fold(String::new(), |inherited, number| {
            nesting(FakeWorld::default(), &inherited, &format!("/job/train{number}"))
        });
        assert_eq!(last.unwrap().split(',').count(), MOST_ENTRYPOINTS);
    }

    proptest::proptest! {
        #[test]
        fn nesting_variable_round_trips(launcher: u32, counts in proptest::collection::vec((0u128.., 0u32..), 1..40)) {
            let nesting = Nesting { launcher, counts };
            proptest::prop_assert_eq!(Nesting::parse(&nesting.render()), Some(nesting));
        }
    }
}
