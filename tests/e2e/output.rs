//! The workers' output is complete: every line whole and in its order, every byte as it was written, on the console
//! of the ranks that the options select, and in the files.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::payload::{blob, flood_line, forward_blob, long_line};
use harness::{Gate, Launch, Name, Outcome, Scratch, field, is_rankrun, is_soak, is_torchrun, print_notice};

const MEGABYTE: usize = 1_000_000;

/// A launch of workers that logs below the scratch folder, and of which the launcher itself has nothing to say.
fn logging_launch(name: Name, workers: usize, scratch: &Scratch, options: &[&str]) -> Launch {
    let launch = Launch::standalone(name, workers).env("OMP_NUM_THREADS", "1").env("RANKRUN_QUIET", "1");
    launch.args(["--log-dir", &scratch.at("logs")]).args(options.iter().copied())
}

/// The folder of one attempt.
#[track_caller]
fn attempt_folder(scratch: &Scratch) -> PathBuf {
    let mut runs = fs::read_dir(scratch.at("logs")).expect("the log folder exists");
    let run = runs.next().and_then(Result::ok).expect("there is a run");
    run.path().join("attempt_0")
}

#[track_caller]
fn read_bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines with their ends.
fn split_lines(text: &[u8]) -> Vec<&[u8]> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        // The only search for a byte that is fast in a debug build.
        let length = (&mut &*rest).skip_until(b'\n').expect("memory can be read");
        let (line, behind) = rest.split_at(length);
        lines.push(line);
        rest = behind;
    }
    lines
}

/// The lines of each rank, without their prefix; fails where a line has none.
#[track_caller]
fn lines_by_rank(console: &[u8]) -> BTreeMap<u32, Vec<&[u8]>> {
    let mut ranks: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
    for line in split_lines(console) {
        let parsed = line.strip_prefix(b"[default").and_then(|rest| {
            let end = rest.windows(2).position(|pair| pair == b"]:")?;
            Some((std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?, &rest[end + 2..]))
        });
        let Some((rank, text)) = parsed else {
            panic!("{}", String::from_utf8_lossy(&line[..line.len().min(300)]))
        };
        ranks.entry(rank).or_default().push(text);
    }
    ranks
}

#[track_caller]
fn assert_flood_complete(lines: &[&[u8]], rank: u32, count: usize) {
    assert_eq!(lines.len(), count, "rank {rank}");
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(String::from_utf8_lossy(line), flood_line(rank, number), "rank {rank}");
    }
}

#[test]
fn floods_of_sixteen_workers_keep_lines_whole() {
    if !is_rankrun() {
        return;
    }
    const WORKERS: usize = 16;
    let count = if is_soak() { 50_000 } else { 2_500 };
    for name in Name::both() {
        let scratch = Scratch::new();
        let launch = logging_launch(*name, WORKERS, &scratch, &["-t", "3"]);
        let outcome = launch.limit(Duration::from_secs(300)).worker([format!("flood-both={count}")]).run();
        outcome.expect_exit_code(0);
        for console in [outcome.stdout_bytes(), outcome.stderr_bytes()] {
            let ranks = lines_by_rank(console);
            assert_eq!(ranks.len(), WORKERS, "{outcome}");
            ranks.iter().for_each(|(&rank, lines)| assert_flood_complete(lines, rank, count));
        }
        for rank in 0..WORKERS {
            for file in ["stdout.log", "stderr.log"] {
                let log = read_bytes(&attempt_folder(&scratch).join(rank.to_string()).join(file));
                assert_flood_complete(
                    &split_lines(&log),
                    u32::try_from(rank).expect("a small number"),
                    count,
                );
            }
        }
        if is_soak() {
            print_notice(&format!("{name:?}: {} lines in {:?}", 2 * WORKERS * count, outcome.took));
        }
    }
}

#[test]
fn flood_without_options_keeps_lines_whole() {
    // Under torchrun's name the workers have our own streams, as there.
    if !is_rankrun() {
        return;
    }
    let count = if is_soak() { 50_000 } else { 2_500 };
    let outcome = Launch::standalone(Name::Rankrun, 8).worker([format!("flood-both={count}")]).run();
    outcome.expect_exit_code(0);
    for console in [outcome.stdout_bytes(), outcome.stderr_bytes()] {
        for rank in 0..8 {
            let start = format!("flood rank={rank} ");
            let mut lines = split_lines(console);
            lines.retain(|line| line.starts_with(start.as_bytes()));
            assert_flood_complete(&lines, rank, count);
        }
    }
}

#[test]
fn raw_bytes_are_unchanged_in_log_files() {
    for name in Name::for_shared_behaviour() {
        let scratch = Scratch::new();
        let size = 3 * MEGABYTE;
        logging_launch(*name, 3, &scratch, &["-t", "1"])
            .worker([format!("blob={size}"), "bytes".into()])
            .run()
            .expect_exit_code(0);
        for rank in 0..3 {
            let expected = [blob(rank, size), b"a\xffb\rc\r\nlast".to_vec()].concat();
            let log = read_bytes(&attempt_folder(&scratch).join(rank.to_string()).join("stdout.log"));
            assert!(log == expected, "{name:?}: the file of rank {rank}");
        }
    }
}

#[test]
fn raw_bytes_are_unchanged_on_console() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let template = ["-t", "1", "--log-line-prefix-template", "<${rank}>"];
        let launch = logging_launch(*name, 1, &scratch, &template);
        let steps = [format!("forward-blob={MEGABYTE}"), "write=\n".into(), "bytes".into()];
        let outcome = launch.worker(steps).run();
        outcome.expect_exit_code(0);
        // Of a line that goes back to its start, the name rankrun shows the last snapshot.
        let rest: &[u8] = if *name == Name::Rankrun { b"\nc\nlast" } else { b"\na\xffb\rc\r\nlast" };
        let written = [&*forward_blob(0, MEGABYTE), rest].concat();
        let expected: Vec<&[u8]> =
            split_lines(&written).into_iter().flat_map(|line| [b"<0>", line]).collect();
        assert!(outcome.stdout_bytes() == expected.concat(), "{name:?}");
    }
}

#[test]
fn lines_of_10_mb_are_complete() {
    if !is_rankrun() {
        return;
    }
    let workers = if is_soak() { 16 } else { 4 };
    let size = 10 * MEGABYTE;
    for name in Name::both() {
        let scratch = Scratch::new();
        let steps =
            ["print=first".to_owned(), format!("long={size}"), format!("elong={size}"), "print=last".into()];
        let launch = logging_launch(*name, workers, &scratch, &["-t", "3"]).limit(Duration::from_secs(300));
        let outcome = launch.worker(steps).run();
        outcome.expect_exit_code(0);
        let (out, err) = (lines_by_rank(outcome.stdout_bytes()), lines_by_rank(outcome.stderr_bytes()));
        for rank in 0..u32::try_from(workers).expect("a small number") {
            let long = long_line(rank, size) + "\n";
            let expected = [&b"first\n"[..], long.as_bytes(), b"last\n"];
            assert!(out[&rank] == expected, "{name:?}: stdout of rank {rank}");
            assert!(err[&rank] == expected[1..2], "{name:?}: stderr of rank {rank}");
            let folder = attempt_folder(&scratch).join(rank.to_string());
            assert!(read_bytes(&folder.join("stdout.log")) == expected.concat(), "{name:?}: rank {rank}");
            assert!(read_bytes(&folder.join("stderr.log")) == long.as_bytes(), "{name:?}: rank {rank}");
        }
    }
}

#[test]
fn line_of_100_mb_is_complete_in_bounded_memory() {
    if !is_rankrun() {
        return;
    }
    let size = 100 * MEGABYTE;
    let scratch = Scratch::new();
    let steps = [format!("rank0:long={size}"), "rank0:launcher-peak".into(), "rank1:flood=20000".into()];
    let outcome = logging_launch(Name::Rankrun, 2, &scratch, &["-t", "1"]).worker(steps).run();
    outcome.expect_exit_code(0);
    let long = long_line(0, size) + "\n";
    assert!(read_bytes(&attempt_folder(&scratch).join("0/stdout.log")) == long.as_bytes());
    let ranks = lines_by_rank(outcome.stdout_bytes());
    assert_flood_complete(&ranks[&1], 1, 20_000);
    // Another's line may have ended a piece of it.
    let pieces: Vec<&[u8]> = ranks[&0].iter().map(|piece| &piece[..piece.len() - 1]).collect();
    assert!(pieces.concat() == long.trim_end().as_bytes());
    let stderr = outcome.stderr();
    let kilobytes: usize =
        field(&stderr, "kb").and_then(|text| text.parse().ok()).expect("the worker says it");
    assert!(kilobytes * 1024 < size, "{stderr}");
}

#[test]
fn unfinished_line_is_shown_and_has_one_prefix() {
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let steps = ["write=first-", &gate.step(), "write=second\n"];
        let job = logging_launch(*name, 1, &scratch, &["-t", "1"]).worker(steps).start();
        job.wait_for_text("[default0]:first-");
        gate.open(1);
        let outcome = job.wait();
        assert_eq!(outcome.expect_exit_code(0).stdout(), "[default0]:first-second\n", "{outcome}");
    }
}

#[test]
fn filtered_out_rank_is_not_on_console() {
    for name in Name::both() {
        for shown_ranks in ["1", "1, 7", "7"] {
            let scratch = Scratch::new();
            let options = ["-t", "1", "--local-ranks-filter", shown_ranks];
            let steps = ["print=out of {rank}", "eprint=err of {rank}"];
            let outcome = logging_launch(*name, 3, &scratch, &options).worker(steps).run();
            outcome.expect_exit_code(0);
            let (out, err) = if shown_ranks == "7" {
                (vec![], vec![])
            } else {
                (vec!["[default1]:out of 1"], vec!["err of 1"])
            };
            assert_eq!(outcome.lines_with("out of"), out, "{outcome}");
            assert_eq!(outcome.lines_with("err of"), err, "{outcome}");
            for rank in 0..3 {
                let folder = attempt_folder(&scratch).join(rank.to_string());
                assert_eq!(read_bytes(&folder.join("stdout.log")), format!("out of {rank}\n").as_bytes());
                assert!(!folder.join("stderr.log").exists());
            }
        }
    }
}

#[test]
fn line_prefix_follows_template() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let template = "${hostname}|$role_name|${rank}/${local_rank}|$$|${nope} ";
        let options = ["-t", "3", "--role", "trn", "--log-line-prefix-template", template];
        let outcome = logging_launch(*name, 2, &scratch, &options).worker(["print=out", "eprint=err"]).run();
        let host = nix::unistd::gethostname().expect("this machine has a name");
        let prefix = |rank| format!("{}|trn|{rank}/{rank}|$|${{nope}} ", host.to_string_lossy());
        outcome
            .expect_exit_code(0)
            .expect_stdout(&format!("{}out\n", prefix(0)))
            .expect_stdout(&format!("{}out\n", prefix(1)));
        outcome.expect_stderr(&format!("{}err\n", prefix(1)));
        assert_eq!(read_bytes(&attempt_folder(&scratch).join("1/stdout.log")), b"out\n");
    }
}

/// Steps of a worker that says what the filters of the next tests look for.
const FRUIT: [&str; 6] = [
    "print=a,b {rank}",
    "print=ab",
    "print=abc {rank}",
    "eprint=a,b {rank}",
    "eprint=nothing",
    "rank1:write=c at last",
];

#[test]
fn duplicate_filter_copies_matching_lines_with_prefix() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let options = ["-t", "3", "--local-ranks-filter", "1,2", "--duplicate-stdout-filters", "a,,b,c"];
        logging_launch(*name, 3, &scratch, &options).worker(FRUIT).run().expect_exit_code(0);
        let text = String::from_utf8(read_bytes(&attempt_folder(&scratch).join("filtered_stdout.log")))
            .expect("plain text");
        let of = |rank: u32| -> Vec<&str> {
            let prefix = format!("[default{rank}]:");
            text.lines().filter_map(|line| line.strip_prefix(&*prefix)).collect()
        };
        assert_eq!(of(0), [""; 0], "a rank that is not shown has no copies: {text}");
        // torchrun lets another's line follow behind an unfinished one.
        if !is_torchrun() {
            assert_eq!(
                (of(1), of(2)),
                (vec!["a,b 1", "abc 1", "c at last"], vec!["a,b 2", "abc 2"]),
                "{text}"
            );
        }
        assert!(!attempt_folder(&scratch).join("filtered_stderr.log").exists());
    }
}

#[test]
fn duplicate_filter_without_tee_leaves_file_empty() {
    for name in Name::both() {
        let scratch = Scratch::new();
        let options = ["-r", "1", "--duplicate-stderr-filters", "a"];
        logging_launch(*name, 2, &scratch, &options).worker(FRUIT).run().expect_exit_code(0);
        assert_eq!(read_bytes(&attempt_folder(&scratch).join("filtered_stderr.log")), b"");
        assert!(!attempt_folder(&scratch).join("filtered_stdout.log").exists());
    }
}

#[test]
fn duplicate_filter_matches_line_written_in_pieces() {
    // torchrun looks at the pieces alone.
    if !is_rankrun() {
        return;
    }
    for name in Name::both() {
        let scratch = Scratch::new();
        let gate = Gate::new(&scratch, "gate");
        let options = ["-t", "1", "--duplicate-stdout-filters", "apple"];
        let steps = ["rank0:write=app", &gate.step(), "rank0:write=le pie\n", "rank1:print=apple"];
        let job = logging_launch(*name, 2, &scratch, &options).worker(steps).start();
        job.wait_for_text("[default0]:app");
        gate.open(2);
        job.wait().expect_exit_code(0);
        let text = String::from_utf8(read_bytes(&attempt_folder(&scratch).join("filtered_stdout.log")))
            .expect("plain text");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[default0]:apple pie", "[default1]:apple"]);
    }
}

/// Every file and folder: its mode, and what is in it.
type Tree = BTreeMap<String, (u32, Option<String>)>;

/// What is below a log folder; the name of the run, which no two have in common, is left out.
fn read_tree(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, name)) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder can be listed").path();
            let last = path.file_name().and_then(|last| last.to_str()).expect("a plain name");
            let name = if name.is_empty() { "run".to_owned() } else { format!("{name}/{last}") };
            let mode = fs::metadata(&path).expect("it is there").permissions().mode();
            let text = path.is_file().then(|| {
                let mut text = String::from_utf8(read_bytes(&path)).expect("plain text");
                if last.starts_with("filtered") {
                    // The ranks take turns as they like.
                    let mut lines: Vec<&str> = text.lines().collect();
                    lines.sort_unstable();
                    text = lines.join("\n");
                }
                text
            });
            if path.is_dir() {
                folders.push((path, name.clone()));
            }
            tree.insert(name, (mode, text));
        }
    }
    tree
}

/// A job that fails once, with every option that makes a file.
fn run_restarted_job(name: Name, scratch: &Scratch) -> Outcome {
    let gate = Gate::new(scratch, &format!("gate-{name:?}"));
    let steps = [
        "print=a,b of {rank} in {attempt}",
        "print=no match",
        "print=c of {rank} in {attempt}",
        "eprint=on stderr: {rank} in {attempt}",
        &format!("attempt0:rank1:{}", gate.step()),
        "attempt0:rank1:exit=3",
        "attempt0:forever",
    ];
    let folder = format!("logs-{name:?}");
    // Relative, as few give it.
    let launch = Launch::standalone(name, 2).cwd(scratch.path()).limit(Duration::from_secs(120));
    let launch = launch.args(["--log-dir", &folder, "-r", "3", "-t", "3", "--max-restarts", "1"]);
    let launch = launch.args(["--duplicate-stdout-filters", "a,,b,c", "--duplicate-stderr-filters", "0 in"]);
    let job = launch.worker(steps).start();
    job.wait_for_lines("]:on stderr: ", 2);
    gate.open(1);
    job.wait()
}

#[test]
fn log_tree_equals_torchrun() {
    let scratch = Scratch::new();
    let trees = [Name::Rankrun, Name::Torchrun, Name::Reference].map(|name| {
        run_restarted_job(name, &scratch).expect_exit_code(0);
        read_tree(&scratch.path().join(format!("logs-{name:?}")))
    });
    let [ours, torchruns, reference] = &trees;
    assert!(reference.contains_key("run/attempt_1/filtered_stdout.log"), "{reference:?}");
    assert_eq!(ours, reference);
    assert_eq!(torchruns, reference);
}
