use crate::log_route::*;
use crate::spec::LineFilters;
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
        duplicates: LineFilters::default(),
    }
}

fn of(spec: &LogSpec, cli_flavor: CliFlavor, folder: Option<&str>) -> Routes {
    let (rank, local_rank) = (Rank(9), LocalRank(1));
    let hostname = || panic!("no prefix asked for it");
    let owner = StreamOwner {
        cli_flavor,
        role: "trn",
        rank,
        local_rank,
        local_world: LocalWorldSize::new(1).unwrap(),
        hostname,
    };
    routes(spec, owner, folder.map(Path::new))
}

fn console_ranks(ranks: &[u32]) -> Option<BTreeSet<LocalRank>> {
    Some(ranks.iter().copied().map(LocalRank).collect())
}

fn captured(file: Option<&str>, prefix: Option<&str>) -> Route {
    Route::Capture { file: file.map(PathBuf::from), prefix: prefix.map(str::to_owned) }
}

#[test]
fn unconfigured_stream_is_inherited_only_under_torchrun() {
    let spec = spec(NONE, NONE);
    assert_eq!(of(&spec, CliFlavor::Torchrun, Some("/l/1")).stdout, Route::Inherit);
    assert_eq!(of(&spec, CliFlavor::Rankrun, Some("/l/1")).stdout, captured(None, None));
}

#[test]
fn redirects_go_to_files_and_tee_to_both() {
    for cli_flavor in [CliFlavor::Torchrun, CliFlavor::Rankrun] {
        let both = of(&spec(BOTH, OUT), cli_flavor, Some("/l/1"));
        assert_eq!(both.stdout, captured(Some("/l/1/stdout.log"), Some("[trn1]:")));
        assert_eq!(both.stderr, Route::File("/l/1/stderr.log".into()));
    }
}

#[test]
fn stream_map_last_entry_of_rank_wins() {
    let ranks = vec![(LocalRank(1), BOTH), (LocalRank(0), BOTH), (LocalRank(1), OUT)];
    let spec = LogSpec { redirects: StreamMap::Ranks(ranks), ..spec(NONE, NONE) };
    let routes = of(&spec, CliFlavor::Torchrun, Some("/l/1"));
    assert_eq!(routes.stdout, Route::File("/l/1/stdout.log".into()));
    assert_eq!(routes.stderr, Route::Inherit);
}

#[test]
fn log_dir_off_under_torchrun_ignores_redirects_and_tee() {
    let spec = LogSpec { dir: LogDir::Off, ..spec(BOTH, OUT) };
    let routes = of(&spec, CliFlavor::Torchrun, None);
    assert_eq!((routes.stdout, routes.stderr), (Route::Inherit, Route::Inherit));
}

#[test]
fn log_dir_off_under_rankrun_redirects_to_dev_null() {
    let spec = LogSpec { dir: LogDir::Off, ..spec(BOTH, OUT) };
    let routes = of(&spec, CliFlavor::Rankrun, None);
    assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
    assert_eq!(routes.stderr, Route::File(DEV_NULL.into()));
}

#[test]
fn log_tree_missing_shows_output_on_console() {
    let routes = of(&spec(BOTH, OUT), CliFlavor::Torchrun, None);
    assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
    assert_eq!(routes.stderr, Route::Inherit);
}

#[test]
fn rank_filtered_from_console_writes_only_to_files() {
    for cli_flavor in [CliFlavor::Torchrun, CliFlavor::Rankrun] {
        for other_ranks in [&[0, 2][..], &[], &[17]] {
            let spec =
                |redirects, tee| LogSpec { console: console_ranks(other_ranks), ..spec(redirects, tee) };
            let teed = of(&spec(NONE, OUT), cli_flavor, Some("/l/1"));
            assert_eq!(teed.stdout, Route::File("/l/1/stdout.log".into()));
            assert_eq!(teed.stderr, Route::File(DEV_NULL.into()));
            let redirected = of(&spec(BOTH, NONE), cli_flavor, Some("/l/1"));
            assert_eq!(redirected.stderr, Route::File("/l/1/stderr.log".into()));
        }
        let spec = LogSpec { console: console_ranks(&[1]), ..spec(NONE, OUT) };
        let routes = of(&spec, cli_flavor, Some("/l/1"));
        assert_eq!(routes.stdout, captured(Some("/l/1/stdout.log"), Some("[trn1]:")));
        assert_ne!(routes.stderr, Route::File(DEV_NULL.into()));
    }
}

#[test]
fn log_dir_off_under_torchrun_shows_every_rank() {
    let spec = LogSpec { dir: LogDir::Off, console: console_ranks(&[0]), ..spec(BOTH, OUT) };
    assert_eq!(of(&spec, CliFlavor::Torchrun, None).stdout, Route::Inherit);
    assert_eq!(of(&spec, CliFlavor::Rankrun, None).stdout, Route::File(DEV_NULL.into()));
}

#[test]
fn log_tree_missing_shows_teed_output_of_filtered_rank() {
    let spec = LogSpec { console: console_ranks(&[0]), ..spec(NONE, OUT) };
    let routes = of(&spec, CliFlavor::Torchrun, None);
    assert_eq!(routes.stdout, captured(None, Some("[trn1]:")));
    assert_eq!(routes.stderr, Route::File(DEV_NULL.into()));
}

#[test]
fn prefix_template_is_expanded() {
    let (cli_flavor, rank, local_rank) = (CliFlavor::Torchrun, Rank(9), LocalRank(1));
    let hostname = || "node7".to_owned();
    let owner = StreamOwner {
        cli_flavor,
        role: "trn",
        rank,
        local_rank,
        local_world: LocalWorldSize::new(1).unwrap(),
        hostname,
    };
    for (template, expected) in [
        ("${hostname}:${rank}/$local_rank ", "node7:9/1 "),
        ("$role_name $$ ${world_size}:", "trn $ ${world_size}:"),
        ("", ""),
    ] {
        let spec = LogSpec { prefix: Some(template.to_owned()), ..spec(NONE, OUT) };
        let routes = routes(&spec, owner, Some(Path::new("/l/1")));
        assert_eq!(routes.stdout, captured(Some("/l/1/stdout.log"), Some(expected)));
    }
}

#[test]
fn row_label_is_prefix_if_workers_share_console() {
    let owner = |workers| StreamOwner {
        cli_flavor: CliFlavor::Rankrun,
        role: "trn",
        rank: Rank(9),
        local_rank: LocalRank(1),
        local_world: LocalWorldSize::new(workers).unwrap(),
        hostname: || "here".to_owned(),
    };
    let label = |text: &str, is_shared| Some(RowLabel { text: text.to_owned(), is_shared });
    let of_ours = |workers, spec: &LogSpec| routes(spec, owner(workers), None).label;
    assert_eq!(of_ours(1, &spec(NONE, NONE)), label("[trn1]:", false));
    assert_eq!(of_ours(2, &spec(NONE, NONE)), label("[trn1]:", true));
    let template = LogSpec { prefix: Some("${rank} ".into()), ..spec(NONE, NONE) };
    assert_eq!(of_ours(2, &template), label("9 ", true));
    assert_eq!(of(&spec(NONE, BOTH), CliFlavor::Torchrun, Some("/l/1")).label, None);
}
