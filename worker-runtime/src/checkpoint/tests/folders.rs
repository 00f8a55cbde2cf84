//! Ranks that do not have the same files.

use super::sharded::{rows, save_parts, sharded_state};
use super::*;

#[test]
fn newest_checkpoint_on_any_rank_is_loaded() {
    let (first, second) = (Folder::new(), Folder::new());
    save(&first, 1, &[20, 40]);
    save(&second, 1, &[60]);
    let load = |folders: &[&Path]| {
        let loaded = run_ranks_in(folders, |checkpoints| {
            let mut own = vec![0.0; 6];
            let loaded = checkpoints.load_latest(&mut model(&mut own))?.unwrap();
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
fn damaged_checkpoint_on_one_rank_falls_back() {
    let (first, second) = (Folder::new(), Folder::new());
    save_parts(&first, 2, 20);
    for name in first.names() {
        fs::copy(first.0.join(&name), second.0.join(&name)).unwrap();
    }
    fs::remove_file(second.main(20)).unwrap();
    let third = Folder::new();
    save_parts(&third, 2, 40);
    fs::copy(third.main(40), second.main(40)).unwrap();
    let loaded = run_ranks_in(&[&first.0, &second.0], |checkpoints| {
        let rank = checkpoints.group.rank().0;
        let (mut own, mut part) = (vec![0.0; 6], vec![0; rows(2, rank, 11).len()]);
        let mut extra = if rank == 0 { vec![0; 3] } else { vec![] };
        let loaded = checkpoints.load_latest(&mut sharded_state(&mut own, &mut part, &mut extra))?.unwrap();
        assert_eq!(part, rows(2, rank, 11));
        Ok((loaded.step, loaded.refused.len()))
    });
    assert_eq!(loaded.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [(20, 1); 2]);
}
