//! Where each stream of a worker goes. Pure.
//!
//! | redirect | tee | file | console |
//! |---|---|---|---|
//! | no | no | – | as it is |
//! | yes | no | yes | no |
//! | any | yes | yes | with prefix |
//!
//! `--log-dir /dev/null` (contract 1.9, 8.27): under the name torchrun neither option has any effect; under our
//! own, redirects go nowhere and tee'd streams to the console alone. Where no tree can be made although nobody
//! switched it off, nothing is lost: what would have had a file goes to the console.

use std::path::{Path, PathBuf};

use rankrun_contract::rank::LocalRank;

use crate::spec::{LogDir, LogSpec, Persona, StreamMap, Streams};

/// Where redirected output goes when there is no log tree by the user's wish.
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
        /// What each line on the console begins with.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speaker<'a> {
    /// The name we go by.
    pub persona: Persona,
    /// `--role`.
    pub role: &'a str,
    /// The worker.
    pub local_rank: LocalRank,
}

/// The routes of one worker; `folder` is its own in the log tree.
#[must_use]
pub fn routes(spec: &LogSpec, speaker: Speaker<'_>, folder: Option<&Path>) -> Routes {
    let redirects = chosen(&spec.redirects, speaker.local_rank);
    let tee = chosen(&spec.tee, speaker.local_rank);
    let place = match (folder, &spec.dir) {
        (Some(folder), _) => Place::Folder(folder),
        (None, LogDir::Off) => Place::Off,
        (None, LogDir::Temporary(_) | LogDir::At(_)) => Place::Missing,
    };
    Routes {
        stdout: route(speaker, place, "stdout.log", Wish { redirect: redirects.stdout, tee: tee.stdout }),
        stderr: route(speaker, place, "stderr.log", Wish { redirect: redirects.stderr, tee: tee.stderr }),
    }
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Folder(&'a Path),
    Off,
    Missing,
}

#[derive(Clone, Copy)]
struct Wish {
    redirect: bool,
    tee: bool,
}

fn route(speaker: Speaker<'_>, place: Place<'_>, name: &str, wish: Wish) -> Route {
    let bare = || match speaker.persona {
        Persona::Torchrun => Route::Inherit,
        Persona::Rankrun => Route::Capture { file: None, prefix: None },
    };
    if matches!(place, Place::Off) && speaker.persona == Persona::Torchrun {
        return bare();
    }
    if wish.tee {
        let file = match place {
            Place::Folder(folder) => Some(folder.join(name)),
            Place::Off | Place::Missing => None,
        };
        let prefix = Some(format!("[{}{}]:", speaker.role, speaker.local_rank));
        return Route::Capture { file, prefix };
    }
    match place {
        Place::Folder(folder) if wish.redirect => Route::File(folder.join(name)),
        Place::Off if wish.redirect => Route::File(NOWHERE.into()),
        _ => bare(),
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
        let speaker = Speaker { persona, role: "trn", local_rank: LocalRank(1) };
        routes(spec, speaker, folder.map(Path::new))
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
}
