//! Where each stream of a worker goes. Pure.
//!
//! | redirect | tee | file | console | console of a rank that nobody wants to hear |
//! |---|---|---|---|---|
//! | no | no | – | as it is | no |
//! | yes | no | yes | no | no |
//! | any | yes | yes | with prefix | no |
//!
//! `--log-dir /dev/null` (contract 1.9, 8.27): under the name torchrun neither option has any effect; under our
//! own, redirects go nowhere and tee'd streams to the console alone. Where no tree can be made although nobody
//! switched it off, nothing is lost: what would have had a file goes to the console, whoever should be heard there.

use std::path::{Path, PathBuf};

use rankrun_contract::rank::{LocalRank, Rank};

use crate::spec::{LogDir, LogSpec, Persona, StreamMap, Streams};
use crate::template::substitute;

/// Where output goes that nobody wants: redirected without a log tree, or of a rank that is not heard.
const NOWHERE: &str = "/dev/null";

/// Where one stream goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The worker has ours.
    Inherit,
    /// The worker has the file itself.
    File(PathBuf),
    /// The worker has a pipe or pseudo-terminal, which we copy to the console.
    Capture {
        /// A byte-exact copy.
        file: Option<PathBuf>,
        /// What each line on the console begins with, when the stream is tee'd.
        prefix: Option<String>,
    },
}

/// Where a worker's streams go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// Standard output.
    pub stdout: Route,
    /// Standard error.
    pub stderr: Route,
}

/// Who a worker is, as far as its output is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Speaker<'a> {
    /// The name we go by.
    pub persona: Persona,
    /// `--role`.
    pub role: &'a str,
    /// The worker in the whole job.
    pub rank: Rank,
    /// The worker on this node.
    pub local_rank: LocalRank,
    /// The short name of this machine; asked for only where a prefix has it.
    pub hostname: fn() -> String,
}

/// The routes of one worker; `folder` is its own in the log tree.
#[must_use]
pub fn routes(spec: &LogSpec, speaker: Speaker<'_>, folder: Option<&Path>) -> Routes {
    let redirects = chosen(&spec.redirects, speaker.local_rank);
    let tee = chosen(&spec.tee, speaker.local_rank);
    let audience = match &spec.console {
        Some(heard) if !heard.contains(&speaker.local_rank) => Audience::Nobody,
        Some(_) | None => Audience::Console,
    };
    let place = match (folder, &spec.dir) {
        (Some(folder), _) => Place::Folder(folder),
        (None, LogDir::Off) => Place::Off,
        (None, LogDir::Temporary(_) | LogDir::At(_)) => Place::Missing,
    };
    let worker = Worker { speaker, template: spec.prefix.as_deref(), audience, place };
    Routes {
        stdout: worker.route("stdout.log", Wish::of(redirects.stdout, tee.stdout)),
        stderr: worker.route("stderr.log", Wish::of(redirects.stderr, tee.stderr)),
    }
}

/// What both streams of a worker have in common.
struct Worker<'a> {
    speaker: Speaker<'a>,
    template: Option<&'a str>,
    audience: Audience,
    place: Place<'a>,
}

/// Whether a worker is heard on the console.
#[derive(Clone, Copy)]
enum Audience {
    Console,
    Nobody,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Folder(&'a Path),
    Off,
    Missing,
}

/// What the options say of one stream.
#[derive(Clone, Copy)]
enum Wish {
    Nothing,
    Redirect,
    Tee,
}

impl Wish {
    const fn of(redirect: bool, tee: bool) -> Self {
        match (redirect, tee) {
            (_, true) => Self::Tee,
            (true, false) => Self::Redirect,
            (false, false) => Self::Nothing,
        }
    }
}

impl Worker<'_> {
    fn route(&self, name: &str, wish: Wish) -> Route {
        if matches!(self.place, Place::Off) && self.speaker.persona == Persona::Torchrun {
            return self.bare();
        }
        match (wish, self.audience, self.place) {
            (Wish::Tee, Audience::Console, Place::Folder(folder)) => self.tee(Some(folder.join(name))),
            (Wish::Tee, Audience::Console, Place::Off) | (Wish::Tee, _, Place::Missing) => self.tee(None),
            (Wish::Tee | Wish::Redirect, _, Place::Folder(folder)) => Route::File(folder.join(name)),
            (Wish::Redirect, _, Place::Missing) | (Wish::Nothing, Audience::Console, _) => self.bare(),
            (Wish::Nothing, Audience::Nobody, _) | (Wish::Tee | Wish::Redirect, _, Place::Off) => {
                Route::File(NOWHERE.into())
            }
        }
    }

    fn tee(&self, file: Option<PathBuf>) -> Route {
        Route::Capture { file, prefix: Some(self.prefix()) }
    }

    fn bare(&self) -> Route {
        match self.speaker.persona {
            Persona::Torchrun => Route::Inherit,
            Persona::Rankrun => Route::Capture { file: None, prefix: None },
        }
    }

    fn prefix(&self) -> String {
        let Speaker { role, rank, local_rank, hostname, .. } = self.speaker;
        let Some(template) = self.template else { return format!("[{role}{local_rank}]:") };
        let value = |name: &str| match name {
            "role_name" => Some(role.to_owned()),
            "local_rank" => Some(local_rank.to_string()),
            "rank" => Some(rank.to_string()),
            "hostname" => Some(hostname()),
            _ => None,
        };
        String::from_utf8_lossy(&substitute(template.as_bytes(), value)).into_owned()
    }
}

fn chosen(map: &StreamMap, local_rank: LocalRank) -> Streams {
    match map {
        StreamMap::All(streams) => *streams,
        StreamMap::Ranks(ranks) => ranks
            .iter()
            .rev()
            .find(|(rank, _)| *rank == local_rank)
            .map_or_else(Streams::default, |(_, streams)| *streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Duplicates;
    use std::collections::BTreeSet;

    const NONE: Streams = Streams { stdout: false, stderr: false };
    const OUT: Streams = Streams { stdout: true, stderr: false };
    const BOTH: Streams = Streams { stdout: true, stderr: true };

    fn spec(redirects: Streams, tee: Streams) -> LogSpec {
        let dir = LogDir::Temporary("/tmp".into());
        LogSpec {
            dir,
            redirects: StreamMap::All(redirects),
            tee: StreamMap::All(tee),
            console: None,
            prefix: None,
            duplicates: Duplicates::default(),
        }
    }

    fn of(spec: &LogSpec, persona: Persona, folder: Option<&str>) -> Routes {
        let (rank, local_rank) = (Rank(9), LocalRank(1));
        let hostname = || panic!("no prefix asked for it");
        let speaker = Speaker { persona, role: "trn", rank, local_rank, hostname };
        routes(spec, speaker, folder.map(Path::new))
    }

    fn heard(ranks: &[u32]) -> Option<BTreeSet<LocalRank>> {
        Some(ranks.iter().copied().map(LocalRank).collect())
    }

    fn captured(file: Option<&str>, prefix: Option<&str>) -> Route {
        Route::Capture { file: file.map(PathBuf::from), prefix: prefix.map(str::to_owned) }
    }

    #[test]
    fn a_stream_that_nobody_named_is_inherited_only_by_torchrun() {
        let spec = spec(NONE, NONE);
        assert_eq!(of(&spec, Persona::Torchrun, Some("/l/1")).stdout, Route::Inherit);
        assert_eq!(of(&spec, Persona::Rankrun, Some("/l/1")).stdout, captured(None, None));
    }

    #[test]
    fn redirects_go_to_files_and_tee_to_both() {
        for persona in [Persona::Torchrun, Persona::Rankrun] {
            let both = of(&spec(BOTH, OUT), persona, Some("/l/1"));
            assert_eq!(both.stdout, captured(Some("/l/1/stdout.log"), Some("[trn1]:")));
            assert_eq!(both.stderr, Route::File("/l/1/stderr.log".into()));
        }
    }

    #[test]
    fn a_rank_is_looked_up_in_the_list_and_the_last_choice_counts() {
        let ranks = vec![(LocalRank(1), BOTH), (LocalRank(0), BOTH), (LocalRank(1), OUT)];
        let spec = LogSpec { redirects: StreamMap::Ranks(ranks), ..spec(NONE, NONE) };
        let routes = of(&spec, Persona::Torchrun, Some("/l/1"));
        assert_eq!(routes.stdout, Route::File("/l/1/stdout.log".into()));
        assert_eq!(routes.stderr, Route::Inherit);
    }

    #[test]
    fn without_a_log_dir_torchrun_ignores_both_options() {
        let spec = LogSpec { dir: LogDir::Off, ..spec(BOTH, OUT) };
        let routes = of(&spec, Persona::Torchrun, None);
        assert_eq!((routes.stdout, routes.stderr), (Route::Inherit, Route::Inherit));
    }

    #[test]
    fn without_a_log_dir_we_redirect_to_nowhere() {
        let spec = LogSpec { dir: LogDir::Off, ..spec(BOTH, OUT) };
        let routes = of(&spec, Persona::Rankrun, None);
        assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
        assert_eq!(routes.stderr, Route::File(NOWHERE.into()));
    }

    #[test]
    fn where_no_tree_could_be_made_nothing_is_lost() {
        let routes = of(&spec(BOTH, OUT), Persona::Torchrun, None);
        assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
        assert_eq!(routes.stderr, Route::Inherit);
    }

    #[test]
    fn a_rank_that_is_not_heard_writes_to_its_files_alone() {
        for persona in [Persona::Torchrun, Persona::Rankrun] {
            for others in [&[0, 2][..], &[], &[17]] {
                let spec = |redirects, tee| LogSpec { console: heard(others), ..spec(redirects, tee) };
                let teed = of(&spec(NONE, OUT), persona, Some("/l/1"));
                assert_eq!(teed.stdout, Route::File("/l/1/stdout.log".into()));
                assert_eq!(teed.stderr, Route::File(NOWHERE.into()));
                let redirected = of(&spec(BOTH, NONE), persona, Some("/l/1"));
                assert_eq!(redirected.stderr, Route::File("/l/1/stderr.log".into()));
            }
            let spec = LogSpec { console: heard(&[1]), ..spec(NONE, OUT) };
            let routes = of(&spec, persona, Some("/l/1"));
            assert_eq!(routes.stdout, captured(Some("/l/1/stdout.log"), Some("[trn1]:")));
            assert_ne!(routes.stderr, Route::File(NOWHERE.into()));
        }
    }

    #[test]
    fn without_a_log_dir_torchrun_hears_everybody() {
        let spec = LogSpec { dir: LogDir::Off, console: heard(&[0]), ..spec(BOTH, OUT) };
        assert_eq!(of(&spec, Persona::Torchrun, None).stdout, Route::Inherit);
        assert_eq!(of(&spec, Persona::Rankrun, None).stdout, Route::File(NOWHERE.into()));
    }

    #[test]
    fn where_no_tree_could_be_made_even_a_silenced_rank_loses_nothing() {
        let spec = LogSpec { console: heard(&[0]), ..spec(NONE, OUT) };
        let routes = of(&spec, Persona::Torchrun, None);
        assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
        assert_eq!(routes.stderr, Route::File(NOWHERE.into()));
    }

    #[test]
    fn a_prefix_is_filled_in() {
        let (persona, rank, local_rank) = (Persona::Torchrun, Rank(9), LocalRank(1));
        let hostname = || "node7".to_owned();
        let speaker = Speaker { persona, role: "trn", rank, local_rank, hostname };
        for (template, expected) in [
            ("${hostname}:${rank}/$local_rank ", "node7:9/1 "),
            ("$role_name $$ ${world_size}:", "trn $ ${world_size}:"),
            ("", ""),
        ] {
            let spec = LogSpec { prefix: Some(template.to_owned()), ..spec(NONE, OUT) };
            let routes = routes(&spec, speaker, Some(Path::new("/l/1")));
            assert_eq!(routes.stdout, captured(Some("/l/1/stdout.log"), Some(expected)));
        }
    }
}
