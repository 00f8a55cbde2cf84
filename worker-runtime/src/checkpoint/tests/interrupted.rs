//! Saves that fail, and ranks that are lost in the middle of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rankrun_contract::rank::WorldSize;

use super::sharded::{load_parts, rows, save_parts, sharded_state};
use super::*;
use crate::process_group::{Backend, DataType, GroupError, HostCollective, MemoryKind, ProcessGroup};

/// A group that breaks before its call of this number.
#[derive(Debug)]
struct Breaks {
    inner: Group,
    before: usize,
    calls: Arc<AtomicUsize>,
}

impl ProcessGroup for Breaks {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn world_size(&self) -> WorldSize {
        self.inner.world_size()
    }

    fn backend(&self) -> Backend {
        self.inner.backend()
    }

    fn run(&mut self, data_type: DataType, work: HostCollective<'_>) -> Result<(), GroupError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.before {
            let (operation, backend) = (work.operation(), self.backend());
            return Err(GroupError::WrongMemory { operation, backend, actual: MemoryKind::Device });
        }
        self.inner.run(data_type, work)
    }

    fn split(&mut self, _: Option<u32>, _: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        Ok(None)
    }

    fn leave(&mut self) {}
}

/// Two ranks save a sharded tensor; rank 1 is cut off before its call of this number. How many calls it has made.
fn save_on_two_ranks(folder: &Folder, before: usize) -> (Vec<bool>, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let groups =
        ThreadGroup::world_with_timeout(2, Duration::from_secs(30)).into_iter().zip([usize::MAX, before]);
    let saved = thread::scope(|scope| {
        let rank = |(group, before): (Group, usize)| {
            let calls = if group.rank() == ROOT { Arc::default() } else { Arc::clone(&calls) };
            let group = Group::new(Box::new(Breaks { inner: group, before, calls }));
            scope.spawn(move || {
                let mut checkpoint = Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0))?;
                checkpoint.save(8, &StateDict::new().sharded("m", &[3], &mut [7i32; 3]))
            })
        };
        let ranks: Vec<_> = groups.map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().is_ok()).collect()
    });
    (saved, calls.load(Ordering::Relaxed))
}

#[test]
fn part_file_without_final_answer_is_kept() {
    let (saved, calls) = save_on_two_ranks(&Folder::new(), usize::MAX);
    assert_eq!(saved, [true; 2]);
    let folder = Folder::new();
    let (saved, _) = save_on_two_ranks(&folder, calls - 1);
    assert!(!saved[1], "it was cut off before the last word");
    let loaded = run_ranks(2, &folder, |checkpoint| {
        let mut own = [0i32; 3];
        let loaded = checkpoint.load_latest(&mut StateDict::new().sharded("m", &[3], &mut own))?;
        Ok((loaded.map(|loaded| loaded.step), own))
    });
    assert_eq!(loaded, [(Some(8), [7; 3]); 2]);
}

#[test]
fn failed_save_keeps_previous_and_errors_on_all_ranks() {
    let folder = Folder::new();
    save_parts(&folder, 3, 20);
    let before = folder.names();
    fs::create_dir_all(folder.main(40).join("in the way")).unwrap();
    let ended = run_ranks_in(&[&*folder.0; 3], |checkpoints| {
        let rank = checkpoints.group.rank().0;
        checkpoints.save(40, &sharded_state(&mut weights(40), &mut rows(3, rank, 11), &mut []))
    });
    let errors: Vec<String> = ended.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let place = folder.main(40).display().to_string();
    assert_eq!(errors[0], format!("cannot write `{place}` for the checkpoint of step 40"));
    assert!(
        errors[1].starts_with(&format!("on rank 0: {}: ", errors[0])) && errors[2] == errors[1],
        "{errors:?}"
    );
    fs::remove_dir_all(folder.main(40)).unwrap();
    assert_eq!(folder.names(), before);
    assert_eq!(load_parts(&folder, 3).step, 20);
}

#[test]
fn rank_death_during_save_keeps_previous_checkpoint() {
    let folder = Folder::new();
    save_parts(&folder, 3, 20);
    let ended = run_ranks_in(&[&*folder.0; 3], |checkpoints| {
        let rank = checkpoints.group.rank().0;
        let mut part = rows(3, rank, 11);
        let state = sharded_state(&mut [0.0; 6], &mut part, &mut []).check();
        assert_eq!(state, Ok(()));
        if rank == 1 {
            // It dies when the others have said what they have, and before its part is there.
            return Ok(());
        }
        checkpoints.save(40, &sharded_state(&mut weights(40), &mut part, &mut []))
    });
    assert!(ended[1].is_ok());
    for rank in [0, 2] {
        let lost = match &ended[rank] {
            Err(CheckpointError::Group(error)) => error.lost_rank(),
            other => panic!("{other:?}"),
        };
        assert_eq!(lost, Some(Rank(1)));
    }
    assert_eq!(load_parts(&folder, 2).step, 20);
}

/// What a save leaves that was killed: parts that no main file names, and files under another name.
#[test]
fn killed_save_is_ignored_and_removed_by_next_save() {
    let (folder, other) = (Folder::new(), Folder::new());
    save_parts(&folder, 2, 20);
    save_parts(&other, 2, 40);
    for name in other.names() {
        let place = if names::parse_step(&name).is_some() {
            names::unfinished_file_name(&name, 7)
        } else {
            name.clone()
        };
        fs::copy(other.0.join(&name), folder.0.join(place)).unwrap();
    }
    let files = folder.names();
    assert_eq!(load_parts(&folder, 3).step, 20);
    assert_eq!(folder.names(), files, "loading changes nothing");
    save_parts(&folder, 2, 40);
    assert_eq!(folder.names().len(), 6, "{:?}", folder.names());
    assert_eq!(load_parts(&folder, 1).step, 40);
}

/// Else a disk that a few killed saves have filled would stay full: what they left went only after a save that succeeds.
#[test]
fn killed_save_files_are_removed_before_next_write() {
    let folder = Folder::new();
    save_parts(&folder, 2, 20);
    let before = folder.names();
    for name in
        [names::unfinished_file_name(&names::main_file_name(30), 1), names::part_file_name(30, 5, 1, 2)]
    {
        fs::write(folder.0.join(name), "torn").unwrap();
    }
    let in_the_way = folder.main(40).join("in the way");
    fs::create_dir_all(&in_the_way).unwrap();
    for ended in run_ranks_in(&[&*folder.0; 2], |checkpoints| checkpoints.save(40, &model(&mut weights(40))))
    {
        assert!(ended.is_err());
    }
    fs::remove_dir_all(folder.main(40)).unwrap();
    assert_eq!(folder.names(), before);
}
