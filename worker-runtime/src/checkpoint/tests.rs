//! Ranks as threads, and files that are torn, damaged, foreign or of another model.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use rankrun_contract::rank::WorldSize;

use crate::process_group::{
    Backend, DataType, GroupError, HostCollective, MemoryGroup, MemoryKind, ProcessGroup,
};

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
        self.0.join(names::main(step))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// What each rank makes of the checkpoints in the folder that it is given.
fn ranks_in<R: Send>(
    folders: &[&Path],
    body: impl Fn(&mut Checkpoint) -> Result<R, CheckpointError> + Sync,
) -> Vec<Result<R, CheckpointError>> {
    let groups = MemoryGroup::world_with(folders.len() as u32, Duration::from_secs(30));
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

fn ranks<R: Send>(
    world: usize,
    folder: &Folder,
    body: impl Fn(&mut Checkpoint) -> Result<R, CheckpointError> + Sync,
) -> Vec<R> {
    let ended = ranks_in(&vec![&*folder.0; world], body);
    ended.into_iter().map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// A model of which every value says the step.
fn weights(step: u64) -> Vec<f32> {
    (0..6).map(|at| step as f32 + at as f32 / 8.0).collect()
}

fn model(weights: &mut [f32]) -> State<'_> {
    State::new().replicated("weight", &[2, 3], weights).metadata("seed", "7")
}

/// Saves these steps of the plain model.
fn save(folder: &Folder, world: usize, steps: &[u64]) {
    ranks(world, folder, |checkpoint| {
        steps.iter().try_for_each(|&step| checkpoint.save(step, &model(&mut weights(step))))
    });
}

/// The newest step that all ranks get of the plain model, with what was refused.
fn load(folder: &Folder, world: usize) -> Option<Loaded> {
    let loaded = ranks(world, folder, |checkpoint| {
        let mut own = vec![-1.0; 6];
        let loaded = checkpoint.load_latest(&mut model(&mut own))?;
        assert_eq!(own, loaded.as_ref().map_or(vec![-1.0; 6], |loaded| weights(loaded.step)));
        Ok(loaded)
    });
    assert!(loaded.iter().all(|other| *other == loaded[0]), "{loaded:?}");
    loaded.into_iter().next().unwrap()
}

#[test]
fn what_was_saved_is_loaded_by_every_rank() {
    for (before, after) in [(1, 1), (2, 2), (4, 2), (1, 3)] {
        let folder = Folder::new();
        assert_eq!(load(&folder, after), None);
        save(&folder, before, &[0, 20]);
        let loaded = load(&folder, after).unwrap();
        assert_eq!((loaded.step, loaded.world_size, loaded.refused), (20, before as u32, vec![]));
        assert_eq!(loaded.metadata, [("seed".to_owned(), "7".to_owned())].into());
    }
}

#[test]
fn the_last_three_are_kept_and_nothing_else_is_left() {
    let folder = Folder::new();
    fs::write(folder.0.join("notes.txt"), "mine").unwrap();
    fs::write(folder.0.join(names::unfinished(&names::main(5), 1)), "torn").unwrap();
    save(&folder, 2, &[10, 20, 30, 40]);
    assert_eq!(folder.names(), ["notes.txt".to_owned(), names::main(20), names::main(30), names::main(40)]);
    save(&folder, 2, &[40]);
    assert_eq!(load(&folder, 1).unwrap().step, 40);
}

#[test]
fn a_torn_or_damaged_file_is_refused_and_the_one_before_is_taken() {
    let folder = Folder::new();
    save(&folder, 1, &[20, 40]);
    let whole = fs::read(folder.main(40)).unwrap();
    let mut files: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
    files.push([&whole[..], b"x"].concat());
    for at in 0..whole.len() {
        for bit in [1, 0x20, 0x80] {
            let mut flipped = whole.clone();
            flipped[at] ^= bit;
            files.push(flipped);
        }
    }
    for bytes in files {
        fs::write(folder.main(40), &bytes).unwrap();
        let loaded = load(&folder, 1).unwrap();
        assert_eq!(loaded.step, 20);
        assert_eq!(loaded.refused.len(), 1, "{loaded:?}");
    }
    fs::write(folder.main(40), &whole).unwrap();
    assert_eq!(load(&folder, 1).unwrap().step, 40);
}

#[test]
fn the_reason_of_a_refusal_is_told_to_every_rank() {
    let folder = Folder::new();
    save(&folder, 1, &[20, 40]);
    let whole = fs::read(folder.main(40)).unwrap();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let huge = [&u64::MAX.to_le_bytes()[..], &[b' '; 100]].concat();
    let foreign = safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None).unwrap();
    let old = fs::read(folder.main(20)).unwrap();
    let version = b"format\":\"1\"";
    let at = whole.windows(version.len()).position(|bytes| bytes == version).unwrap();
    let mut future = whole.clone();
    future[at + version.len() - 2] = b'2';
    for (bytes, expected) in [
        (whole[..whole.len() - 1].to_vec(), "torn: it has "),
        (Vec::new(), "torn: it has 0 bytes, and should have 8"),
        (damaged(whole.len() - 3), "damaged: its bytes do not fit its checksum"),
        (huge, "no safetensors file: its head would have 18446744073709551615 bytes, of 108 in all"),
        (foreign, "no checkpoint of rankrun: another program wrote it"),
        (old, "it is of step 20, and its name says another one"),
        (b"\x10\0\0\0\0\0\0\0[[[[[[[[[[[[[[[[".to_vec(), "its head is no JSON of a safetensors file: "),
        (future, "a checkpoint in the format \"2\""),
    ] {
        fs::write(folder.main(40), &bytes).unwrap();
        let loaded = load(&folder, 3).unwrap();
        assert_eq!(loaded.step, 20);
        let [refused] = &loaded.refused[..] else { panic!("{loaded:?}") };
        assert!(refused.reason.starts_with(expected), "{refused}");
        assert_eq!(refused.path, folder.main(40));
    }
}

/// A file may claim any length, and be as long as it claims without a byte on the disk.
#[test]
fn no_memory_is_taken_for_what_a_file_only_claims() {
    let folder = Folder::new();
    save(&folder, 1, &[20]);
    let sparse = fs::File::create(folder.main(40)).unwrap();
    sparse.set_len(1 << 42).unwrap();
    for claimed in [99_000_000u64, 1 << 41] {
        sparse.write_all_at(&claimed.to_le_bytes(), 0).unwrap();
        assert_eq!(load(&folder, 1).unwrap().refused.len(), 1);
    }
    let json = br#"{"x":{"dtype":"U8","shape":[4398046511000],"data_offsets":[0,4398046511000]},"__metadata__":{"rankrun.format":"1","rankrun.step":"40","rankrun.world_size":"1","rankrun.checksum":"0000000000000000"}}"#;
    sparse.write_all_at(&(json.len() as u64).to_le_bytes(), 0).unwrap();
    sparse.write_all_at(json, 8).unwrap();
    let [refused] = &load(&folder, 1).unwrap().refused[..] else { panic!("one is refused") };
    assert!(refused.reason.starts_with("torn: it has 4398046511104 bytes, and should have "), "{refused}");
}

#[test]
fn where_none_can_be_used_every_rank_says_why() {
    let folder = Folder::new();
    fs::write(folder.main(20), "x").unwrap();
    fs::create_dir(folder.main(40)).unwrap();
    for error in ranks_in(&[&folder.0, &folder.0], |it| it.load_latest(&mut model(&mut weights(0)))) {
        let error = error.unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("can be used\n`") && told.contains("torn: it has 1 bytes, and should have 8"),
            "{told}"
        );
        assert!(told.contains("step-0000000040.safetensors`: it cannot be read: "), "{told}");
        assert_eq!(error.hint(), Some("remove these files to begin anew"));
    }
}

#[test]
fn a_checkpoint_of_another_model_names_what_differs_first() {
    let folder = Folder::new();
    let (mut one, mut two, mut three) = ([1.0f32; 6], [2.0f64; 2], [3i32; 4]);
    ranks(1, &folder, |it| {
        let (mut one, mut two, mut three) = (one, two, three);
        let state = State::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
        it.save(7, &state.sharded("m", &[4], &mut three))
    });
    let differs = |state: &mut State<'_>| {
        let group = MemoryGroup::world(1).remove(0);
        let error =
            Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0)).unwrap().load_latest(state);
        let error = error.unwrap_err().to_string();
        let expected = format!("the checkpoint `{}` is of another model: ", folder.main(7).display());
        error.strip_prefix(&expected).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let state = State::new().replicated("w", &[3, 2], &mut one).replicated("c", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[4], &mut three)),
        "`w` has the shape [3, 2] in this program, and [2, 3] in the checkpoint"
    );
    let state = State::new().replicated("w", &[2, 3], &mut one).replicated("c", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[4], &mut three)),
        "it has no `c`, but `b`, which this program does not have"
    );
    let state = State::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut three[..2]);
    assert_eq!(
        differs(&mut state.sharded("m", &[2], &mut [0i32; 2])),
        "`b` is of type i32 in this program, and f64 in the checkpoint"
    );
    let state = State::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[3], &mut three[..3])),
        "`m` has the shape [3] in this program, and [4] in the checkpoint"
    );
    let state = State::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(differs(&mut { state }), "it has `m`, which this program does not have");
    let state = State::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(
        differs(&mut state.replicated("m", &[4], &mut three)),
        "it has no `m`, but `m`, which this program does not have"
    );
}

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
            return Err(GroupError::WrongMemory { operation, backend, given: MemoryKind::Device });
        }
        self.inner.run(data_type, work)
    }

    fn split(&mut self, _: Option<u32>, _: u32) -> Result<Option<Box<dyn ProcessGroup>>, GroupError> {
        Ok(None)
    }

    fn leave(&mut self) {}
}

/// Two ranks save a sharded tensor; rank 1 is cut off before its call of this number. How many calls it has made.
fn saved_by_two(folder: &Folder, before: usize) -> (Vec<bool>, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let groups = MemoryGroup::world_with(2, Duration::from_secs(30)).into_iter().zip([usize::MAX, before]);
    let saved = thread::scope(|scope| {
        let rank = |(group, before): (Group, usize)| {
            let calls = if group.rank() == ROOT { Arc::default() } else { Arc::clone(&calls) };
            let group = Group::new(Box::new(Breaks { inner: group, before, calls }));
            scope.spawn(move || {
                let mut checkpoint = Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0))?;
                checkpoint.save(8, &State::new().sharded("m", &[3], &mut [7i32; 3]))
            })
        };
        let ranks: Vec<_> = groups.map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().is_ok()).collect()
    });
    (saved, calls.load(Ordering::Relaxed))
}

#[test]
fn a_rank_that_does_not_hear_whether_a_checkpoint_is_whole_leaves_its_part() {
    let (saved, calls) = saved_by_two(&Folder::new(), usize::MAX);
    assert_eq!(saved, [true; 2]);
    let folder = Folder::new();
    let (saved, _) = saved_by_two(&folder, calls - 1);
    assert!(!saved[1], "it was cut off before the last word");
    let loaded = ranks(2, &folder, |checkpoint| {
        let mut own = [0i32; 3];
        let loaded = checkpoint.load_latest(&mut State::new().sharded("m", &[3], &mut own))?;
        Ok((loaded.map(|loaded| loaded.step), own))
    });
    assert_eq!(loaded, [(Some(8), [7; 3]); 2]);
}

/// Row `r` of a sharded tensor.
fn rows(world: u32, rank: u32, total: usize) -> Vec<i64> {
    let ranks = world as usize;
    let cut = |rank: usize| total * rank / ranks;
    (cut(rank as usize)..cut(rank as usize + 1)).flat_map(|row| [row as i64, -(row as i64)]).collect()
}

fn with_parts<'a>(weights: &'a mut [f32], rows: &'a mut [i64], extra: &'a mut [u8]) -> State<'a> {
    let shape = [rows.len() / 2, 2];
    let bytes = [extra.len()];
    model(weights).sharded("momentum", &shape, rows).sharded("mask", &bytes, extra)
}

fn save_parts(folder: &Folder, world: u32, step: u64) {
    ranks(world as usize, folder, |it| {
        let rank = it.group.rank().0;
        // Only rank 0 has any of the second one.
        let mut extra = if rank == 0 { vec![9, 8, 7] } else { vec![] };
        it.save(step, &with_parts(&mut weights(step), &mut rows(world, rank, 11), &mut extra))
    });
}

fn load_parts(folder: &Folder, world: u32) -> Loaded {
    let loaded = ranks(world as usize, folder, |it| {
        let rank = it.group.rank().0;
        let (mut own, expected) = (vec![0.0; 6], rows(world, rank, 11));
        let mut part = vec![0; expected.len()];
        let mut extra = if rank == world - 1 { vec![0; 3] } else { vec![] };
        let loaded = it.load_latest(&mut with_parts(&mut own, &mut part, &mut extra))?.unwrap();
        assert_eq!((own, part), (weights(loaded.step), expected));
        assert!(extra.is_empty() || extra == [9, 8, 7]);
        Ok(loaded)
    });
    loaded.into_iter().next().unwrap()
}

#[test]
fn parts_find_their_ranks_in_another_world() {
    for before in [1, 2, 4] {
        let folder = Folder::new();
        save_parts(&folder, before, 40);
        for after in [1, 2, 3, 4, 5] {
            assert_eq!(load_parts(&folder, after).step, 40);
        }
    }
}

#[test]
fn a_checkpoint_without_all_of_its_parts_is_none() {
    let folder = Folder::new();
    save_parts(&folder, 2, 20);
    save_parts(&folder, 4, 40);
    let part = |step: u64, which: &str| {
        let names = folder.names();
        let is_it = |name: &&String| name.starts_with(&format!("step-{step:010}.")) && name.contains(which);
        folder.0.join(names.iter().find(is_it).unwrap())
    };
    let (gone, other) = (part(40, "part-2-of-4"), part(40, "part-1-of-4"));
    let whole = fs::read(&gone).unwrap();
    let refusal = || {
        let loaded = load_parts(&folder, 2);
        assert_eq!(loaded.step, 20);
        loaded.refused.into_iter().next().unwrap().reason
    };
    fs::write(&gone, &whole[..whole.len() - 1]).unwrap();
    let told = refusal();
    assert!(told.starts_with("its part 2 of 4: torn: "), "{told}");
    // A good part, but another one.
    fs::copy(&other, &gone).unwrap();
    assert_eq!(refusal(), "its part 2 of 4: not the part that belongs to the checkpoint");
    fs::remove_file(&gone).unwrap();
    let told = refusal();
    assert!(told.starts_with("its part 2 of 4: it cannot be read: "), "{told}");
    fs::write(&gone, &whole).unwrap();
    assert_eq!(load_parts(&folder, 2).step, 40);
}

#[test]
fn the_newest_one_is_found_wherever_it_lies() {
    let (first, second) = (Folder::new(), Folder::new());
    save(&first, 1, &[20, 40]);
    save(&second, 1, &[60]);
    let load = |folders: &[&Path]| {
        let loaded = ranks_in(folders, |it| {
            let mut own = vec![0.0; 6];
            let loaded = it.load_latest(&mut model(&mut own))?.unwrap();
            assert_eq!(own, weights(loaded.step));
            Ok((loaded.step, loaded.refused.len()))
        });
        loaded.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(load(&[&first.0, &second.0, &first.0]), [(60, 0); 3]);
    // The copy of one rank is damaged, and that of another one is not.
    fs::copy(second.main(60), first.main(60)).unwrap();
    fs::File::options().write(true).open(first.main(60)).unwrap().set_len(100).unwrap();
    assert_eq!(load(&[&first.0, &second.0, &first.0]), [(60, 1); 3]);
}

/// Rank 1 has the newest one, without a part, and no other one; what rank 0 has stays on offer.
#[test]
fn what_one_rank_offers_in_vain_costs_the_others_nothing() {
    let (first, second) = (Folder::new(), Folder::new());
    save_parts(&first, 2, 20);
    for name in first.names() {
        fs::copy(first.0.join(&name), second.0.join(&name)).unwrap();
    }
    fs::remove_file(second.main(20)).unwrap();
    let third = Folder::new();
    save_parts(&third, 2, 40);
    fs::copy(third.main(40), second.main(40)).unwrap();
    let loaded = ranks_in(&[&first.0, &second.0], |it| {
        let rank = it.group.rank().0;
        let (mut own, mut part) = (vec![0.0; 6], vec![0; rows(2, rank, 11).len()]);
        let mut extra = if rank == 0 { vec![0; 3] } else { vec![] };
        let loaded = it.load_latest(&mut with_parts(&mut own, &mut part, &mut extra))?.unwrap();
        assert_eq!(part, rows(2, rank, 11));
        Ok((loaded.step, loaded.refused.len()))
    });
    assert_eq!(loaded.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [(20, 1); 2]);
}

#[test]
fn a_save_that_fails_leaves_the_one_before_and_every_rank_knows() {
    let folder = Folder::new();
    save_parts(&folder, 3, 20);
    let before = folder.names();
    fs::create_dir_all(folder.main(40).join("in the way")).unwrap();
    let ended = ranks_in(&[&*folder.0; 3], |it| {
        let rank = it.group.rank().0;
        it.save(40, &with_parts(&mut weights(40), &mut rows(3, rank, 11), &mut []))
    });
    let told: Vec<String> = ended.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let place = folder.main(40).display().to_string();
    assert_eq!(told[0], format!("cannot write `{place}` for the checkpoint of step 40"));
    assert!(told[1].starts_with(&format!("rank 0 says: {}: ", told[0])) && told[2] == told[1], "{told:?}");
    fs::remove_dir_all(folder.main(40)).unwrap();
    assert_eq!(folder.names(), before);
    assert_eq!(load_parts(&folder, 3).step, 20);
}

#[test]
fn a_rank_that_dies_while_it_saves_costs_only_this_save() {
    let folder = Folder::new();
    save_parts(&folder, 3, 20);
    let ended = ranks_in(&[&*folder.0; 3], |it| {
        let rank = it.group.rank().0;
        let mut part = rows(3, rank, 11);
        let state = with_parts(&mut [0.0; 6], &mut part, &mut []).check();
        assert_eq!(state, Ok(()));
        if rank == 1 {
            // It dies when the others have said what they have, and before its part is there.
            return Ok(());
        }
        it.save(40, &with_parts(&mut weights(40), &mut part, &mut []))
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
fn what_a_killed_save_left_is_no_checkpoint_and_goes_with_the_next_one() {
    let (folder, other) = (Folder::new(), Folder::new());
    save_parts(&folder, 2, 20);
    save_parts(&other, 2, 40);
    for name in other.names() {
        let place = if names::step_of(&name).is_some() { names::unfinished(&name, 7) } else { name.clone() };
        fs::copy(other.0.join(&name), folder.0.join(place)).unwrap();
    }
    let left = folder.names();
    assert_eq!(load_parts(&folder, 3).step, 20);
    assert_eq!(folder.names(), left, "loading changes nothing");
    save_parts(&folder, 2, 40);
    assert_eq!(folder.names().len(), 6, "{:?}", folder.names());
    assert_eq!(load_parts(&folder, 1).step, 40);
}

#[test]
fn ranks_that_do_not_mean_the_same_are_told() {
    let folder = Folder::new();
    let ended = ranks_in(&[&*folder.0; 2], |it| {
        let step = 40 + u64::from(it.group.rank().0);
        it.save(step, &model(&mut weights(40)))
    });
    for result in ended {
        let told = result.unwrap_err().to_string();
        assert_eq!(told, "rank 1 saves step 41 where rank 0 saves step 40");
    }
    let ended = ranks_in(&[&*folder.0; 2], |it| {
        let width = it.group.rank().index() + 1;
        it.save(40, &State::new().sharded("m", &[2, width], &mut vec![0i32; 2 * width]))
    });
    for result in ended {
        let told = result.unwrap_err().to_string();
        assert_eq!(
            told,
            "rank 1 has other sharded tensors than rank 0, by their names, types or shapes of rows"
        );
    }
    assert!(folder.names().is_empty());
}

#[test]
fn a_folder_that_cannot_be_is_refused_at_once() {
    let folder = Folder::new();
    fs::write(folder.0.join("file"), "").unwrap();
    let below = folder.0.join("file/below");
    for (rank, result) in ranks_in(&[&*below; 2], |_| Ok(())).into_iter().enumerate() {
        let error = result.unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains(&format!("cannot keep checkpoints in the folder `{}`", below.display())),
            "{told}"
        );
        assert_eq!(error.hint().is_some(), rank == 0);
    }
}

#[test]
fn other_programs_read_the_file() {
    let folder = Folder::new();
    save(&folder, 1, &[20]);
    let bytes = fs::read(folder.main(20)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("weight").unwrap();
    assert_eq!((tensor.shape(), tensor.dtype()), (&[2, 3][..], safetensors::Dtype::F32));
    let expected: Vec<u8> = weights(20).iter().flat_map(|weight| weight.to_le_bytes()).collect();
    assert_eq!(tensor.data(), expected);
    // A name that looks like our checksum is not taken for it.
    ranks(1, &folder, |it| {
        let mut bytes = [1u8; 3];
        let state = State::new().replicated("rankrun.checksum", &[3], &mut bytes);
        it.save(30, &state.metadata("a", "\"rankrun.checksum\":\"0123456789abcdef\""))
    });
    let mut bytes = [0u8; 3];
    let mut state = State::new().replicated("rankrun.checksum", &[3], &mut bytes);
    let group = MemoryGroup::world(1).remove(0);
    let mut checkpoint = Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0)).unwrap();
    assert_eq!(checkpoint.load_latest(&mut state).unwrap().unwrap().step, 30);
    assert_eq!(bytes, [1; 3]);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,200}") {
        header::Header::parse(&bytes).ok();
        header::Header::parse(text.as_bytes()).ok();
        let folder = Folder::new();
        let path = folder.main(1);
        fs::write(&path, &bytes).unwrap();
        prop_assert!(file::Opened::open_verified(&path).is_err());
    }
}
