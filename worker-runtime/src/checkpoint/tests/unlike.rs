//! Checkpoints of another model, and ranks that do not mean the same.

use super::*;

#[test]
fn checkpoint_of_other_model_names_first_difference() {
    let folder = Folder::new();
    let (mut one, mut two, mut three) = ([1.0f32; 6], [2.0f64; 2], [3i32; 4]);
    run_ranks(1, &folder, |checkpoints| {
        let (mut one, mut two, mut three) = (one, two, three);
        let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
        checkpoints.save(7, &state.sharded("m", &[4], &mut three))
    });
    let differs = |state: &mut StateDict<'_>| {
        let group = ThreadGroup::world(1).remove(0);
        let error =
            Checkpoint::with_group(group, &CheckpointOptions::new(&folder.0)).unwrap().load_latest(state);
        let error = error.unwrap_err().to_string();
        let expected = format!("the checkpoint `{}` is of another model: ", folder.main(7).display());
        error.strip_prefix(&expected).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let state = StateDict::new().replicated("w", &[3, 2], &mut one).replicated("c", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[4], &mut three)),
        "`w` has the shape [3, 2] in this program, and [2, 3] in the checkpoint"
    );
    let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("c", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[4], &mut three)),
        "it has no `c`, but `b`, which this program does not have"
    );
    let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut three[..2]);
    assert_eq!(
        differs(&mut state.sharded("m", &[2], &mut [0i32; 2])),
        "`b` is of type i32 in this program, and f64 in the checkpoint"
    );
    let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(
        differs(&mut state.sharded("m", &[3], &mut three[..3])),
        "`m` has the shape [3] in this program, and [4] in the checkpoint"
    );
    let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(differs(&mut { state }), "it has `m`, which this program does not have");
    let state = StateDict::new().replicated("w", &[2, 3], &mut one).replicated("b", &[2], &mut two);
    assert_eq!(
        differs(&mut state.replicated("m", &[4], &mut three)),
        "it has no `m`, but `m`, which this program does not have"
    );
}

#[test]
fn different_states_or_steps_are_error_on_all_ranks() {
    let folder = Folder::new();
    let ended = run_ranks_in(&[&*folder.0; 2], |checkpoints| {
        let step = 40 + u64::from(checkpoints.group.rank().0);
        checkpoints.save(step, &model(&mut weights(40)))
    });
    for result in ended {
        let message = result.unwrap_err().to_string();
        assert_eq!(message, "rank 1 saves step 41 where rank 0 saves step 40");
    }
    let ended = run_ranks_in(&[&*folder.0; 2], |checkpoints| {
        let width = checkpoints.group.rank().index() + 1;
        checkpoints.save(40, &StateDict::new().sharded("m", &[2, width], &mut vec![0i32; 2 * width]))
    });
    for result in ended {
        let message = result.unwrap_err().to_string();
        assert_eq!(
            message,
            "the sharded tensors of rank 1 differ from rank 0 in their names, types or row shapes"
        );
    }
    assert!(folder.names().is_empty());
}

#[test]
fn step_beyond_file_name_digits_is_refused() {
    let folder = Folder::new();
    for ended in
        run_ranks_in(&[&*folder.0; 2], |checkpoints| checkpoints.save(1 << 63, &model(&mut weights(0))))
    {
        let error_text = ended.unwrap_err().to_string();
        assert!(error_text.ends_with("step 9223372036854775808 is too large: the largest step of a checkpoint is 9223372036854775807"), "{error_text}");
    }
    assert!(folder.names().is_empty());
    save(&folder, 1, &[i64::MAX as u64]);
    assert_eq!(load(&folder, 1).unwrap().step, i64::MAX as u64);
}
