//! The header of a program: elf(5). Pure.

/// The type of the segment with the loader's path: `PT_INTERP`.
pub(super) const LOADER: u64 = 3;
/// The type of segments with notes: `PT_NOTE`.
pub(super) const NOTE: u64 = 4;

/// The first bytes of a program.
pub(super) struct Elf<'a> {
    head: &'a [u8],
    /// Whether it is a program of 64 bits.
    pub(super) is_64_bit: bool,
    is_big_endian: bool,
    /// The number of the processor type.
    pub(super) machine: u16,
}

impl<'a> Elf<'a> {
    pub(super) fn parse(head: &'a [u8]) -> Option<Self> {
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let (is_64_bit, is_big_endian) = (*head.get(4)? == 2, *head.get(5)? == 2);
        let elf = Self { head, is_64_bit, is_big_endian, machine: 0 };
        Some(Self { machine: u16::try_from(elf.number(18, 2)?).ok()?, ..elf })
    }

    /// The number at that place, of this length in bytes.
    pub(super) fn number(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.head.get(at..at.checked_add(size)?)?;
        let add = |number: u64, byte: &u8| (number << 8) | u64::from(*byte);
        Some(if self.is_big_endian { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) })
    }

    /// An offset or size in the file.
    fn offset(&self, wide: usize, narrow: usize) -> Option<usize> {
        let (at, size) = if self.is_64_bit { (wide, 8) } else { (narrow, 4) };
        usize::try_from(self.number(at, size)?).ok()
    }

    /// The contents of the segments of this type, as far as they are within the first bytes.
    pub(super) fn segments(&self, kind: u64) -> impl Iterator<Item = &'a [u8]> + '_ {
        let of_kind = self.headers().filter(move |at| self.number(*at, 4) == Some(kind));
        of_kind.filter_map(|at| self.content(at))
    }

    /// Whether the rest of the file may have a segment of this type: the segment or its header is not in the first bytes.
    pub(super) fn may_have_beyond(&self, kind: u64) -> bool {
        self.headers().any(|at| match self.number(at, 4) {
            Some(is) => is == kind && self.content(at).is_none(),
            None => true,
        })
    }

    /// The places of the headers of the segments.
    fn headers(&self) -> impl Iterator<Item = usize> + use<> {
        let count_at = if self.is_64_bit { 56 } else { 44 };
        let table = self.offset(32, 28).unwrap_or(usize::MAX);
        let size = self.number(count_at - 2, 2).unwrap_or_default();
        let count = self.number(count_at, 2).unwrap_or_default();
        (0..count).filter_map(move |at| table.checked_add(usize::try_from(at * size).ok()?))
    }

    /// The content of the segment whose header is at that place.
    fn content(&self, header: usize) -> Option<&'a [u8]> {
        let place = self.offset(header.checked_add(8)?, header.checked_add(4)?)?;
        let length = self.offset(header.checked_add(32)?, header.checked_add(16)?)?;
        self.head.get(place..place.checked_add(length)?)
    }
}
