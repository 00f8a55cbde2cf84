//! Tensors of which every rank has a part.

use super::*;

/// Row `r` of a sharded tensor.
pub(super) fn rows(world: u32, rank: u32, total: usize) -> Vec<i64> {
    let ranks = world as usize;
    let cut = |rank: usize| total * rank / ranks;
    (cut(rank as usize)..cut(rank as usize + 1)).flat_map(|row| [row as i64, -(row as i64)]).collect()
}

pub(super) fn sharded_state<'a>(
    weights: &'a mut [f32],
    rows: &'a mut [i64],
    extra: &'a mut [u8],
) -> StateDict<'a> {
    let shape = [rows.len() / 2, 2];
    let bytes = [extra.len()];
    model(weights).sharded("momentum", &shape, rows).sharded("mask", &bytes, extra)
}

pub(super) fn save_parts(folder: &Folder, world: u32, step: u64) {
    run_ranks(world as usize, folder, |checkpoints| {
        let rank = checkpoints.group.rank().0;
        // Only rank 0 has any of the second one.
        let mut extra = if rank == 0 { vec![9, 8, 7] } else { vec![] };
        checkpoints.save(step, &sharded_state(&mut weights(step), &mut rows(world, rank, 11), &mut extra))
    });
}

pub(super) fn load_parts(folder: &Folder, world: u32) -> Loaded {
    let loaded = run_ranks(world as usize, folder, |checkpoints| {
        let rank = checkpoints.group.rank().0;
        let (mut own, expected) = (vec![0.0; 6], rows(world, rank, 11));
        let mut part = vec![0; expected.len()];
        let mut extra = if rank == world - 1 { vec![0; 3] } else { vec![] };
        let loaded = checkpoints.load_latest(&mut sharded_state(&mut own, &mut part, &mut extra))?.unwrap();
        assert_eq!((own, part), (weights(loaded.step), expected));
        assert!(extra.is_empty() || extra == [9, 8, 7]);
        Ok(loaded)
    });
    loaded.into_iter().next().unwrap()
}

#[test]
fn sharded_checkpoint_loads_in_other_world_size() {
    for before in [1, 2, 4] {
        let folder = Folder::new();
        save_parts(&folder, before, 40);
        for after in [1, 2, 3, 4, 5] {
            assert_eq!(load_parts(&folder, after).step, 40);
        }
    }
}

#[test]
fn checkpoint_with_missing_part_is_skipped() {
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
    let reason = refusal();
    assert!(reason.starts_with("its part 2 of 4: torn: "), "{reason}");
    // A good part, but another one.
    fs::copy(&other, &gone).unwrap();
    assert_eq!(refusal(), "its part 2 of 4: not the part that belongs to the checkpoint");
    fs::remove_file(&gone).unwrap();
    let reason = refusal();
    assert!(reason.starts_with("its part 2 of 4: it cannot be read: "), "{reason}");
    fs::write(&gone, &whole).unwrap();
    assert_eq!(load_parts(&folder, 2).step, 40);
}
