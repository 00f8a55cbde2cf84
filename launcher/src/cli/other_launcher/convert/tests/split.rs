//! How many workers each node gets, where a launcher and rankrun differ.

use super::*;

#[test]
fn uneven_split_of_launcher_is_said_in_note() {
    for (line, shares) in [
        ("mpirun -np 10 -H s1:4,s2:8 train.py", Some("mpirun starts 4 on s1, 6 on s2")),
        ("mpirun -np 5 -H s1:4,s2:4 train.py", Some("mpirun starts 4 on s1, 1 on s2")),
        ("mpirun -H s1:4,s2:8 train.py", Some("mpirun starts 4 on s1, 8 on s2")),
        ("horovodrun -np 3 -H s1:2,s2:2 train.py", None),
        ("mpirun -np 8 -H s1:4,s2:4 train.py", None),
        ("mpirun -np 10 -H s1:2,s2:2 train.py", None),
        ("mpirun -np 2 --map-by node -H s1:4,s2:4 train.py", None),
    ] {
        let notes = notes_of(line);
        assert_eq!(notes.contains("spreads the workers evenly"), shares.is_some(), "{line}: {notes}");
        assert!(shares.is_none_or(|shares| notes.contains(shares)), "{line}: {notes}");
    }
}

#[test]
fn processes_by_node_are_spread_over_all_hosts() {
    for (line, words) in [
        ("mpirun -np 2 --map-by node -H s1:4,s2:4 train.py", "--nproc-per-node 1 --nnodes 2"),
        ("mpirun -np 2 -bynode -H s1:4,s2:4,s3:4 train.py", "--nproc-per-node 1 --nnodes 2"),
        ("mpirun -np 1 -H s1,s2 train.py", "--nproc-per-node 1 train.py"),
        ("srun -n 1 -N 2 train.py", "--nproc-per-node 1 train.py"),
    ] {
        assert!(command_of(line).starts_with(&format!("rankrun {words}")), "{line}: {}", command_of(line));
    }
}

#[test]
fn launcher_in_quotes_is_named_in_note() {
    for (line, inner) in [
        ("srun -N 2 bash -c 'torchrun --nproc_per_node 8 x.py'", Some("torchrun")),
        ("srun -N 2 /bin/sh -lc 'python -m torch.distributed.run x.py'", Some("torch.distributed.run")),
        ("srun -N 2 bash -c 'python train.py'", None),
        ("srun -N 2 python train.py 'a torchrun'", None),
    ] {
        let note = "in the quotes stays, and each worker runs it";
        let notes = notes_of(line);
        assert_eq!(notes.contains(note), inner.is_some(), "{line}: {notes}");
        assert!(inner.is_none_or(|inner| notes.contains(&format!("`{inner}` {note}"))), "{line}: {notes}");
    }
}
