//! Ranks as threads, over files in folders of their own.

mod folders;
mod interrupted;
mod sharded;
mod torn;
mod unlike;

use std::thread;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::process_group::ThreadGroup;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = Self(std::env::temp_dir().join(format!("rankrun-{}", Uuid::new_v4())));
        fs::create_dir(&folder.0).unwrap();
        folder
    }

    fn names(&self) -> Vec<String> {
        let mut names = file::list(&self.0).unwrap();
        names.sort();
        names
    }

    fn main(&self, step: u64) -> PathBuf {
        self.0.join(names::main_file_name(step))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// What each rank makes of the checkpoints in the folder that it is given.
fn run_ranks_in<R: Send>(
    folders: &[&Path],
    body: impl Fn(&mut Checkpoint) -> Result<R, CheckpointError> + Sync,
) -> Vec<Result<R, CheckpointError>> {
    let groups = ThreadGroup::world_with_timeout(folders.len() as u32, Duration::from_secs(30));
    thread::scope(|scope| {
        let body = &body;
        let rank = |(group, folder): (Group, &&Path)| {
            let options = CheckpointOptions::new(*folder);
            scope.spawn(move || body(&mut Checkpoint::with_group(group, &options)?))
        };
        let ranks: Vec<_> = groups.into_iter().zip(folders).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn run_ranks<R: Send>(
    world: usize,
    folder: &Folder,
    body: impl Fn(&mut Checkpoint) -> Result<R, CheckpointError> + Sync,
) -> Vec<R> {
    let ended = run_ranks_in(&vec![&*folder.0; world], body);
    ended.into_iter().map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// A model of which every value says the step.
fn weights(step: u64) -> Vec<f32> {
    (0..6).map(|at| step as f32 + at as f32 / 8.0).collect()
}

fn model(weights: &mut [f32]) -> StateDict<'_> {
    StateDict::new().replicated("weight", &[2, 3], weights).with_metadata("seed", "7")
}

/// Saves these steps of the plain model.
fn save(folder: &Folder, world: usize, steps: &[u64]) {
    run_ranks(world, folder, |checkpoint| {
        steps.iter().try_for_each(|&step| checkpoint.save(step, &model(&mut weights(step))))
    });
}

/// The newest step that all ranks get of the plain model, with what was refused.
fn load(folder: &Folder, world: usize) -> Option<Loaded> {
    let loaded = run_ranks(world, folder, |checkpoint| {
        let mut own = vec![-1.0; 6];
        let loaded = checkpoint.load_latest(&mut model(&mut own))?;
        assert_eq!(own, loaded.as_ref().map_or(vec![-1.0; 6], |loaded| weights(loaded.step)));
        Ok(loaded)
    });
    assert!(loaded.iter().all(|other| *other == loaded[0]), "{loaded:?}");
    loaded.into_iter().next().unwrap()
}

#[test]
fn saved_state_is_loaded_by_every_rank() {
    for (before, after) in [(1, 1), (2, 2), (4, 2), (1, 3)] {
        let folder = Folder::new();
        assert_eq!(load(&folder, after), None);
        save(&folder, before, &[0, 20]);
        let loaded = load(&folder, after).unwrap();
        assert_eq!((loaded.step, loaded.world_size, loaded.refused), (20, before as u32, vec![]));
        assert_eq!(loaded.metadata, [("seed".to_owned(), "7".to_owned())].into());
    }
}

/// As where the state is made from a hash map.
#[test]
fn tensor_order_may_differ_between_ranks() {
    let folder = Folder::new();
    let (first, second) = ([1.0f32, 2.0], [3.0f32, 4.0]);
    run_ranks(1, &folder, |checkpoints| {
        let (mut first, mut second) = (first, second);
        checkpoints.save(
            7,
            &StateDict::new().replicated("first", &[2], &mut first).replicated("second", &[2], &mut second),
        )
    });
    let loaded = run_ranks(3, &folder, |checkpoints| {
        let (mut first, mut second) = ([0.0f32; 2], [0.0f32; 2]);
        let mut listed = [("first", &mut first), ("second", &mut second)];
        if checkpoints.group.rank().0 != 0 {
            listed.reverse();
        }
        let mut state = StateDict::new();
        for (name, values) in listed {
            state = state.replicated(name, &[2], values);
        }
        checkpoints.load_latest(&mut state)?;
        Ok((first, second))
    });
    assert_eq!(loaded, [(first, second); 3]);
}

#[test]
fn only_last_three_checkpoints_are_kept() {
    let folder = Folder::new();
    fs::write(folder.0.join("notes.txt"), "mine").unwrap();
    fs::write(folder.0.join(names::unfinished_file_name(&names::main_file_name(5), 1)), "torn").unwrap();
    save(&folder, 2, &[10, 20, 30, 40]);
    assert_eq!(
        folder.names(),
        [
            "notes.txt".to_owned(),
            names::main_file_name(20),
            names::main_file_name(30),
            names::main_file_name(40)
        ]
    );
    save(&folder, 2, &[40]);
    assert_eq!(load(&folder, 1).unwrap().step, 40);
}

#[test]
fn impossible_folder_is_refused_at_open() {
    let folder = Folder::new();
    fs::write(folder.0.join("file"), "").unwrap();
    let below = folder.0.join("file/below");
    for (rank, result) in run_ranks_in(&[&*below; 2], |_| Ok(())).into_iter().enumerate() {
        let error = result.unwrap_err();
        let error_text = error.to_string();
        assert!(
            error_text.contains(&format!("the checkpoint folder `{}` cannot be used", below.display())),
            "{error_text}"
        );
        assert_eq!(error.hint().is_some(), rank == 0);
    }
}

#[test]
fn checkpoint_file_is_valid_safetensors() {
    let folder = Folder::new();
    save(&folder, 1, &[20]);
    let bytes = fs::read(folder.main(20)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("weight").unwrap();
    assert_eq!((tensor.shape(), tensor.dtype()), (&[2, 3][..], safetensors::Dtype::F32));
    let expected: Vec<u8> = weights(20).iter().flat_map(|weight| weight.to_le_bytes()).collect();
    assert_eq!(tensor.data(), expected);
    // A name that looks like our checksum is not taken for it.
    run_ranks(1, &folder, |checkpoints| {
        let mut bytes = [1u8; 3];
        let state = StateDict::new().replicated("rankrun.checksum", &[3], &mut bytes);
        checkpoints.save(30, &state.with_metadata("a", "\"rankrun.checksum\":\"0123456789abcdef\""))
    });
    let mut bytes = [0u8; 3];
    let mut state = StateDict::new().replicated("rankrun.checksum", &[3], &mut bytes);
    let group = ThreadGroup::world(1).remove(0);
    let mut checkpoint = Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0)).unwrap();
    assert_eq!(checkpoint.load_latest(&mut state).unwrap().unwrap().step, 30);
    assert_eq!(bytes, [1; 3]);
}
