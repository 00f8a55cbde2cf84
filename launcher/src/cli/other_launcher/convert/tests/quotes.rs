//! What a shell replaces in the line, it replaces in the converted one, and nothing else.

use super::*;

#[test]
fn quotes_are_kept_at_each_place() {
    for (line, command) in [
        ("srun -n 2 bash -c 'echo $X' $X", "rankrun --nproc-per-node 2 --no-python bash -c 'echo $X' $X"),
        (
            "srun --ntasks-per-node 1 bash -c 'python x.py $HEAD_NODE $SLURM_NNODES'",
            "rankrun --nproc-per-node 1 --nnodes \"$SLURM_NNODES\" --rdzv-backend c10d \
             --rdzv-endpoint \"$HEAD_NODE:29400\" --no-python bash -c 'python x.py $HEAD_NODE $SLURM_NNODES'",
        ),
        ("torchrun train.py '$C' \"$A\" '$B'", "rankrun --nproc-per-node 1 train.py '$C' \"$A\" '$B'"),
        (
            "torchrun train.py data/*.txt x{1..3} $D/[ab] '*.md'",
            "rankrun --nproc-per-node 1 train.py data/*.txt x{1..3} $D/[ab] '*.md'",
        ),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
}

#[test]
fn text_with_different_quotes_is_refused() {
    for (line, text) in [
        (
            "torchrun --nproc_per_node 2 train.py --include '*.py' --files *.py",
            "`*.py` needs different quotes",
        ),
        ("torchrun train.py --a \"$X\" --b $X", "`$X` needs different quotes"),
        ("torchrun train.py \"$X\" '$X'", "`$X` needs different quotes"),
        ("srun -n 2 bash -c 'echo $X' $X '$X'", "`$X` needs different quotes"),
        ("mpirun -np 2 -x 'A=$X' train.py $X", "`$X` needs different quotes"),
        ("mpirun -np 2 --hostfile none train.py '$NODES'", "`$NODES` needs different quotes"),
    ] {
        let text_of = converted(line).map(|(conversion, _)| conversion.words).unwrap_err().render();
        assert!(text_of.contains(text) && text_of.contains("\nhint: "), "{line}: {text_of}");
    }
}

#[test]
fn tilde_of_assignment_becomes_home() {
    for (line, command) in [
        (
            "HF_HOME=~/hf torchrun train.py --dir=~/x ~/y",
            "HF_HOME=\"$HOME/hf\" rankrun --nproc-per-node 1 train.py '--dir=~/x' \"$HOME/y\"",
        ),
        (
            "PYTHONPATH=~/a:~/b:$PYTHONPATH torchrun train.py",
            "PYTHONPATH=\"$HOME/a:$HOME/b:$PYTHONPATH\" rankrun --nproc-per-node 1 train.py",
        ),
        ("A='~/x' torchrun train.py", "A='~/x' rankrun --nproc-per-node 1 train.py"),
    ] {
        assert_eq!(command_of(line), command, "{line}");
    }
    for line in ["A=~me/x torchrun train.py", "torchrun ~+/train.py", "torchrun train.py data=~/x"] {
        let text = converted(line).map(|(conversion, _)| conversion.words).unwrap_err().render();
        assert!(
            text.contains("may replace the `~`") && text.contains("hint: write the folder"),
            "{line}: {text}"
        );
    }
}

#[test]
fn prompt_of_readme_is_skipped() {
    for line in ["$ torchrun train.py", "\n  $ torchrun train.py\n"] {
        assert_eq!(command_of(line), "rankrun --nproc-per-node 1 train.py", "{line}");
    }
    let words = ["$", "torchrun", "train.py"].map(OsString::from);
    assert_eq!(answer(&words, false, &facts(&[])).unwrap(), "rankrun --nproc-per-node 1 train.py\n");
    assert!(answer(&["$".into()], false, &facts(&[])).unwrap_err().render().contains("no command line"));
}
