//! The mark of programs with the worker runtime: an ELF note. The launcher reads it in the program's file.

/// The name of the note: text, its end, and zeros to a multiple of four bytes, as elf(5) has it.
pub const WORKER_NOTE: &[u8; 16] = b"rankrun-worker\0\0";

/// The length of the name with its end.
pub const WORKER_NOTE_LENGTH: u32 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_name_ends_with_its_length() {
        let end = WORKER_NOTE.iter().position(|byte| *byte == 0).unwrap();
        assert_eq!(end + 1, WORKER_NOTE_LENGTH as usize);
    }
}
