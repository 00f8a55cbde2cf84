use super::*;
use std::os::unix::fs::PermissionsExt;

/// A folder that is gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(make_unique(&std::env::temp_dir(), "rankrun-test").unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn make_tree(dir: &LogDir, id: &str) -> LogTree {
    match LogTree::make(dir, &run_id(id)).unwrap() {
        TreeOutcome::Made(tree) => tree,
        other => panic!("{other:?}"),
    }
}

fn run_id(text: &str) -> RunId {
    RunId(text.to_owned())
}

fn two_workers() -> LocalWorldSize {
    LocalWorldSize::new(2).unwrap()
}

#[test]
fn log_tree_layout_is_that_of_torchrun() {
    let scratch = Scratch::new();
    let base = scratch.0.join("a/b");
    let mut tree = make_tree(&LogDir::At(base.clone()), "x/y");
    let attempt = tree.attempt(RestartCount(0), two_workers()).unwrap();
    let name = tree.run_folder().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("x_y_") && name.len() == 12, "{name}");
    assert_eq!(tree.run_folder().parent(), Some(&*base));
    assert_eq!(tree.run_folder().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(attempt.error_file(LocalRank(1)), tree.run_folder().join("attempt_0/1/error.json"));
    assert!(attempt.worker(LocalRank(1)).is_dir());
}

#[test]
fn attempt_folder_made_again_is_empty() {
    let scratch = Scratch::new();
    let mut tree = make_tree(&LogDir::At(scratch.0.clone()), "j");
    let first = tree.attempt(RestartCount(1), two_workers()).unwrap();
    std::fs::write(first.error_file(LocalRank(0)), "{}").unwrap();
    let second = tree.attempt(RestartCount(1), two_workers()).unwrap();
    assert_eq!(first, second);
    assert!(!second.error_file(LocalRank(0)).exists());
}

#[test]
fn round_without_restart_gets_new_attempt_folder() {
    let scratch = Scratch::new();
    let mut tree = make_tree(&LogDir::At(scratch.0.clone()), "j");
    let name = |attempt: &Attempt| attempt.folder().file_name().unwrap().to_str().unwrap().to_owned();
    let made = [(0, 0), (2, 0), (3, 1), (4, 1)]
        .map(|(round, restarts)| tree.attempt_in(round, RestartCount(restarts), two_workers()).unwrap());
    let names = ["attempt_0", "attempt_0.round_2", "attempt_1", "attempt_1.round_4"];
    assert_eq!(made.each_ref().map(name), names);
    let [first, second, ..] = &made;
    assert!(first.worker(LocalRank(1)).is_dir() && second.worker(LocalRank(1)).is_dir());
    std::fs::write(second.error_file(LocalRank(0)), "{}").unwrap();
    tree.remove_empty();
    assert!(second.error_file(LocalRank(0)).exists() && !second.worker(LocalRank(1)).exists());
    assert!(made.iter().all(|attempt| attempt == second || !attempt.folder().exists()));
}

#[test]
fn remove_empty_keeps_folders_with_files() {
    let scratch = Scratch::new();
    let dir = LogDir::Temporary(scratch.0.clone());
    let mut tree = make_tree(&dir, "j");
    tree.attempt(RestartCount(0), two_workers()).unwrap();
    let kept = tree.attempt(RestartCount(1), two_workers()).unwrap();
    let run = tree.run_folder().to_owned();
    std::fs::write(kept.error_file(LocalRank(1)), "{}").unwrap();
    tree.remove_empty();
    assert!(kept.error_file(LocalRank(1)).exists());
    assert!(!kept.worker(LocalRank(0)).exists());
    assert!(!run.join("attempt_0").exists());

    let mut tree = make_tree(&dir, "j");
    for (restarts, workers) in [(0, 2), (1, 1)] {
        tree.attempt(RestartCount(restarts), LocalWorldSize::new(workers).unwrap()).unwrap();
    }
    let base = tree.run_folder().parent().unwrap().to_owned();
    assert!(base.file_name().unwrap().to_str().unwrap().starts_with("torchelastic_"));
    tree.remove_empty();
    assert!(!base.exists());
}

#[test]
fn error_files_are_found_in_all_attempts_but_not_in_symlinks() {
    let scratch = Scratch::new();
    let mut tree = make_tree(&LogDir::ErrorFiles(scratch.0.clone()), "j");
    let attempts = [0, 1].map(|restarts| tree.attempt(RestartCount(restarts), two_workers()).unwrap());
    let files = [attempts[0].error_file(LocalRank(1)), attempts[1].error_file(LocalRank(0))];
    files.iter().for_each(|file| std::fs::write(file, "{}").unwrap());
    let elsewhere = scratch.0.join("elsewhere/0");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::write(elsewhere.join(ERROR_FILE), "{}").unwrap();
    std::os::unix::fs::symlink(elsewhere.parent().unwrap(), tree.run_folder().join("attempt_9")).unwrap();
    let mut found = tree.error_files(9);
    found.sort();
    assert_eq!(found, files);
    assert_eq!(tree.error_files(1).len(), 1);
}

#[test]
fn named_tree_removed_meanwhile_is_made_again_and_temporary_one_is_not() {
    let scratch = Scratch::new();
    for (dir, is_made) in
        [(LogDir::At(scratch.0.join("logs")), true), (LogDir::Temporary(scratch.0.clone()), false)]
    {
        let mut tree = make_tree(&dir, "j");
        let first = tree.attempt(RestartCount(0), two_workers()).unwrap();
        std::fs::remove_dir_all(first.folder().parent().unwrap().parent().unwrap()).unwrap();
        let second = tree.attempt(RestartCount(1), two_workers());
        assert_eq!(second.is_ok_and(|attempt| attempt.worker(LocalRank(1)).is_dir()), is_made, "{dir:?}");
    }
}

#[test]
fn unwritable_log_dir_is_an_error() {
    let scratch = Scratch::new();
    let file = scratch.0.join("file");
    std::fs::write(&file, "").unwrap();
    let error =
        LogTree::make(&LogDir::At(file.join("logs")), &run_id("j")).expect_err("a file is not a folder");
    assert!(matches!(&error, LogError::Folder { path, .. } if *path == file.join("logs")), "{error:?}");
    assert!(error.to_string().contains("logs`"), "{error}");
}

#[test]
fn missing_temporary_folder_gives_note() {
    let scratch = Scratch::new();
    let missing = scratch.0.join("missing");
    let outcome = LogTree::make(&LogDir::Temporary(missing), &run_id("j")).unwrap();
    assert!(matches!(outcome, TreeOutcome::Lost(LogNote::NoTree { .. })), "{outcome:?}");
}

#[test]
fn long_run_id_is_cut_at_char_boundary() {
    assert_eq!(folder_name(&run_id(&"\u{e9}".repeat(300))).len(), NAME_LIMIT);
    assert!(folder_name(&run_id(&format!("a{}", "\u{e9}".repeat(300)))).len() < NAME_LIMIT);
}
