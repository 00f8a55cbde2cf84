//! Folders of jobs in a temporary place.

use std::os::unix::fs::symlink;

use super::*;

/// A place of its own, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rankrun-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn folders(&self) -> RuntimeFolders {
        RuntimeFolders(vec![RuntimeFolder { path: self.0.join("rankrun"), needs_own_parent: true }])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn jobs(place: &Place) -> Vec<JobFolder> {
    place.folders().find_job_folders().unwrap().jobs
}

fn dead(place: &Place, now: SystemTime) -> Vec<JobFolder> {
    place.folders().find_job_folders().unwrap().into_dead(now)
}

fn job() -> JobId {
    JobId(Uuid::new_v4().to_string())
}

#[test]
fn runtime_folders_are_in_order_of_preference() {
    let paths = |runtime_dir: Option<&str>, temporary: Option<&str>| -> Vec<String> {
        let folders = RuntimeFolders::of(runtime_dir.map(OsStr::new), temporary.map(OsStr::new), 7);
        folders.0.iter().map(|folder| folder.path.display().to_string()).collect()
    };
    let (user, shared) = ("/run/user/7/rankrun", "/tmp/rankrun-7");
    assert_eq!(paths(None, None), [user, shared]);
    assert_eq!(paths(Some("/r"), Some("/t")), ["/r/rankrun", user, "/t/rankrun-7", shared]);
    // A relative path is not allowed (XDG Base Directory Specification).
    assert_eq!(paths(Some("r"), Some("t")), [user, shared]);
    assert_eq!(paths(Some("/run/user/7"), Some("/tmp")), [user, shared]);
}

#[test]
fn job_folder_is_private_and_removed_with_its_parent() {
    let place = Place::new("private");
    let (folder, listener) = JobFolder::make(&place.folders(), &job()).unwrap();
    for path in [&folder.path, &place.0.join("rankrun")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700, "{path:?}");
    }
    assert!(!folder.is_dead());
    assert_eq!((jobs(&place), dead(&place, SystemTime::now())), (vec![folder.clone()], vec![]));
    drop(listener);
    assert_eq!(dead(&place, SystemTime::now()), std::slice::from_ref(&folder));
    folder.remove().unwrap();
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0);
}

#[test]
fn job_folder_with_long_path_is_made_and_reached() {
    let place = Place::new("long");
    let deep = Place(place.0.join("x".repeat(200)));
    DirBuilder::new().mode(0o700).create(&deep.0).unwrap();
    let (folder, _listener) = JobFolder::make(&deep.folders(), &job()).unwrap();
    assert!(folder.path.as_os_str().len() > MAX_SOCKET_PATH);
    assert!(folder.connect(ANSWER_TIMEOUT).is_ok());
    assert_eq!(jobs(&deep), [folder]);
}

#[test]
fn own_folder_that_others_may_read_is_listed_and_made_private() {
    let place = Place::new("readable");
    let path = place.0.join("rankrun");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let (folder, _listener) = JobFolder::make(&place.folders(), &job()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let found = place.folders().find_job_folders().unwrap();
    assert_eq!((found.jobs, found.refused, mode()), (vec![folder], vec![], 0o755));
    assert!(JobFolder::make(&place.folders(), &job()).is_ok());
    assert_eq!(mode(), 0o700);
}

#[test]
fn folder_that_others_may_change_is_refused_with_reason() {
    let place = Place::new("open");
    let path = place.0.join("rankrun");
    let refusal = |reason: &str| {
        let expected = format!("the runtime folder `{}` is not used: {reason}", path.display());
        assert_eq!(JobFolder::make(&place.folders(), &job()).unwrap_err().to_string(), expected);
        let found = place.folders().find_job_folders().unwrap();
        let refused: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
        assert_eq!((found.jobs, refused), (vec![], vec![expected]));
    };
    for mode in [0o720, 0o702] {
        DirBuilder::new().create(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        refusal(&format!("other users may write to it (mode {mode:o})"));
        fs::remove_dir(&path).unwrap();
    }
    symlink("/", &path).unwrap();
    refusal("it is not a folder");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    refusal("it is not a folder");
    fs::remove_file(&path).unwrap();
    if rustix::process::geteuid().is_root() {
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        refusal("it belongs to another user (uid 12345)");
    }
}

/// As under `sudo`: jobs have their folders in the next place.
#[test]
fn runtime_folder_of_other_user_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new("sudo");
    let other = place.0.join("other");
    DirBuilder::new().mode(0o700).create(&other).unwrap();
    std::os::unix::fs::chown(&other, Some(12_345), None).unwrap();
    let folders = RuntimeFolders(vec![RuntimeFolder { path: other.join("rankrun"), needs_own_parent: true }]);
    let refused = JobFolder::make(&folders, &job()).unwrap_err().to_string();
    assert_eq!(refused, format!("`{}` is not a folder of this user", other.display()));
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    assert_eq!(folders.find_job_folders().unwrap(), FoundFolders::default());
}

#[test]
fn refused_folder_behind_a_usable_one_is_not_reported() {
    let place = Place::new("behind");
    let usable = RuntimeFolder { path: place.0.join("rankrun"), needs_own_parent: true };
    let refused = RuntimeFolder { path: place.0.join("file"), needs_own_parent: false };
    fs::write(&refused.path, "").unwrap();
    let reported = |folders| RuntimeFolders(folders).find_job_folders().unwrap().refused.len();
    assert_eq!(reported(vec![usable.clone(), refused.clone()]), 0);
    assert_eq!(reported(vec![refused, usable]), 1);
}

#[test]
fn foreign_entries_are_not_job_folders() {
    let place = Place::new("foreign");
    let (folder, _listener) = JobFolder::make(&place.folders(), &job()).unwrap();
    for name in ["notes", ".new-4711"] {
        DirBuilder::new().create(place.0.join("rankrun").join(name)).unwrap();
    }
    let [file, link] = [job(), job()].map(|job| place.0.join("rankrun").join(job.0));
    fs::write(file, "").unwrap();
    symlink(&folder.path, link).unwrap();
    assert_eq!(jobs(&place), std::slice::from_ref(&folder));
    folder.remove().unwrap();
    assert!(place.0.join("rankrun/notes").exists(), "a parent with other entries stays");
}

/// An agent was killed between two of its calls.
#[test]
fn new_folder_of_killed_agent_is_found_and_removed_when_old() {
    let place = Place::new("abandoned");
    let (folder, _listener) = JobFolder::make(&place.folders(), &job()).unwrap();
    let new = place.0.join("rankrun").join(format!("{NEW_PREFIX}{}", job().0));
    let make = || DirBuilder::new().mode(0o700).create(&new).unwrap();
    make();
    let paths = |now| -> Vec<PathBuf> { dead(&place, now).into_iter().map(|folder| folder.path).collect() };
    let later = SystemTime::now() + 2 * NEW_LIMIT;
    assert_eq!((paths(SystemTime::now()), paths(later)), (vec![], vec![new.clone()]));
    // The next job removes it, but not that of a job which is about to listen.
    let next = || JobFolder::make(&place.folders(), &job()).unwrap().0.remove().unwrap();
    next();
    assert!(new.exists());
    File::open(&new).unwrap().set_modified(SystemTime::now() - 2 * NEW_LIMIT).unwrap();
    next();
    assert!(!new.exists());
    // The guard knows the job, and waits for no age.
    make();
    let name = new.file_name().unwrap().to_str().unwrap().strip_prefix(NEW_PREFIX).unwrap();
    place.folders().remove_job(&JobId(name.to_owned()));
    assert!(!new.exists());
    folder.remove().unwrap();
}

/// A process was killed after it had removed the folder.
#[test]
fn parent_of_folder_that_is_gone_is_removed() {
    let place = Place::new("half");
    let (folder, _listener) = JobFolder::make(&place.folders(), &job()).unwrap();
    fs::remove_dir_all(&folder.path).unwrap();
    assert_eq!(folder.remove().map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0);
}

#[test]
fn first_usable_place_takes_the_folder() {
    let place = Place::new("next");
    let missing = RuntimeFolder { path: place.0.join("missing/rankrun"), needs_own_parent: true };
    let usable = RuntimeFolder { path: place.0.join("rankrun"), needs_own_parent: true };
    let (folder, _listener) = JobFolder::make(&RuntimeFolders(vec![missing, usable]), &job()).unwrap();
    assert!(folder.path.starts_with(place.0.join("rankrun")));
}

#[test]
fn jobs_that_end_together_do_not_refuse_a_start() {
    let place = Place::new("together");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let (folder, _listener) = JobFolder::make(&place.folders(), &job()).unwrap();
                    folder.remove().unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0);
}
