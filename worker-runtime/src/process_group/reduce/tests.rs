//! Compares every kernel with plain arithmetic on single elements, at any alignment.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;

use super::kernel::{self, ReduceJob};
use super::number::{Largest, Number, Product, Smallest, Sum};
use super::{DataType, Element, ReduceOp, as_bytes, as_bytes_mut, fold, reduce_into};

const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Max, ReduceOp::Min];
const TYPES: [DataType; 7] =
    [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64, DataType::I32, DataType::I64, DataType::U8];

/// The expected bytes, by arithmetic that is independent of the kernels.
fn expected(data_type: DataType, op: ReduceOp, ranks: &[Vec<u8>], finish: Option<u32>) -> Vec<u8> {
    macro_rules! floats {
        ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
            elementwise(ranks, |values: &[$type]| {
                let mut values = values.iter().copied().map($widen);
                let mut total: $wide = values.next().unwrap();
                for next in values {
                    total = match op {
                        ReduceOp::Sum | ReduceOp::Mean => total + next,
                        ReduceOp::Product => total * next,
                        _ if total.is_nan() || next.is_nan() => <$wide>::NAN,
                        ReduceOp::Max if next > total => next,
                        ReduceOp::Min if next < total => next,
                        ReduceOp::Max | ReduceOp::Min => total,
                    };
                }
                $narrow(match finish {
                    Some(count) if op == ReduceOp::Mean => total / count as $wide,
                    _ => total,
                })
            })
        };
    }
    macro_rules! integers {
        ($type:ty) => {
            elementwise(ranks, |values: &[$type]| {
                // Wide enough for any sum or product of few; a wrap-around is cut off.
                let wide = || values.iter().map(|&value| i128::from(value));
                let wrapped = |total: i128| total as $type;
                match op {
                    ReduceOp::Sum => wrapped(wide().sum()),
                    ReduceOp::Mean => {
                        let sum = i128::from(wrapped(wide().sum()));
                        wrapped(sum / i128::from(finish.unwrap_or(1)))
                    }
                    ReduceOp::Product => values.iter().fold(1, |total, &value| total.wrapping_mul(value)),
                    ReduceOp::Max => wrapped(wide().max().unwrap()),
                    ReduceOp::Min => wrapped(wide().min().unwrap()),
                }
            })
        };
    }
    match data_type {
        DataType::None => Vec::new(),
        DataType::F16 => floats!(f16, f32, f16::to_f32, f16::from_f32),
        DataType::Bf16 => floats!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DataType::F32 => floats!(f32, f32, std::convert::identity, std::convert::identity),
        DataType::F64 => floats!(f64, f64, std::convert::identity, std::convert::identity),
        DataType::I32 => integers!(i32),
        DataType::I64 => integers!(i64),
        DataType::U8 => integers!(u8),
    }
}

fn elementwise<T: Element>(ranks: &[Vec<u8>], reduce: impl Fn(&[T]) -> T) -> Vec<u8> {
    let elements = ranks[0].len() / size_of::<T>();
    let at = |rank: &Vec<u8>, index| {
        bytemuck::pod_read_unaligned(&rank[index * size_of::<T>()..][..size_of::<T>()])
    };
    let reduced =
        (0..elements).map(|index| reduce(&ranks.iter().map(|rank| at(rank, index)).collect::<Vec<T>>()));
    as_bytes(&reduced.collect::<Vec<T>>()).to_vec()
}

/// The elements as bits, with one value for every NaN: its payload is not specified.
fn bits(data_type: DataType, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(data_type.size())
        .map(|element| {
            let mut bits = [0; 8];
            bits[..element.len()].copy_from_slice(element);
            let bits = u64::from_le_bytes(bits);
            let is_nan = match data_type {
                DataType::F16 => f16::from_bits(bits as u16).is_nan(),
                DataType::Bf16 => bf16::from_bits(bits as u16).is_nan(),
                DataType::F32 => f32::from_bits(bits as u32).is_nan(),
                DataType::F64 => f64::from_bits(bits).is_nan(),
                _ => false,
            };
            if is_nan { u64::MAX } else { bits }
        })
        .collect()
}

/// Values that matter: zero, one, infinity, NaN, the least and the largest.
fn special_values(data_type: DataType) -> Vec<u64> {
    match data_type {
        DataType::F16 => vec![0, 0x8000, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 1, 0x8001, 0x03FF],
        DataType::Bf16 => vec![0, 0x8000, 0x3F80, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 1, 0x8001, 0x007F],
        DataType::F32 => {
            [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-45, -1e-45]
                .map(|value| u64::from(value.to_bits()))
                .to_vec()
        }
        DataType::F64 => {
            [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX, 5e-324, -5e-324]
                .map(f64::to_bits)
                .to_vec()
        }
        _ => vec![0, 1, 2, u64::MAX, 1 << 31, (1 << 31) - 1, 1 << 63, (1 << 63) - 1, 0x80, 0x7F],
    }
}

/// Bytes of elements from random numbers: a third each of random bits, special values and the smallest numbers. A
/// strategy of three alternatives for each element took nearly all of the test's time, since each has a generator.
fn element_bytes(data_type: DataType, numbers: &[u64]) -> Vec<u8> {
    let (special, size) = (special_values(data_type), data_type.size());
    let bytes = |number: &u64| {
        let bits = match number % 3 {
            0 => number.rotate_right(1),
            1 => special[(number / 3) as usize % special.len()],
            _ => number / 3 % 4,
        };
        bits.to_le_bytes()[..size].to_vec()
    };
    numbers.iter().flat_map(bytes).collect()
}

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
    ranks: Vec<Vec<u8>>,
    /// Misalignment in bytes of each rank's memory and of the target.
    offsets: Vec<usize>,
    finish: Option<u32>,
}

fn case() -> impl Strategy<Value = Case> {
    (select(&TYPES), select(&REDUCTIONS), 1usize..12, 0usize..100).prop_flat_map(
        |(data_type, op, ranks, length)| {
            let rank = prop::collection::vec(any::<u64>(), length)
                .prop_map(move |numbers| element_bytes(data_type, &numbers));
            let ranks_of = prop::collection::vec(rank, ranks);
            let offsets = prop::collection::vec(0usize..17, ranks + 1);
            (ranks_of, offsets, prop::option::of(1u32..600)).prop_map(move |(ranks, offsets, finish)| Case {
                data_type,
                op,
                ranks,
                offsets,
                finish,
            })
        },
    )
}

/// Memory with guard bytes before and after.
struct Placed {
    memory: Vec<u8>,
    offset: usize,
    length: usize,
}

impl Placed {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let mut memory = vec![0xA5; offset + bytes.len() + 64];
        memory[offset..][..bytes.len()].copy_from_slice(bytes);
        Self { memory, offset, length: bytes.len() }
    }

    fn get(&self) -> &[u8] {
        &self.memory[self.offset..][..self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..][..self.length]
    }

    fn is_untouched_around(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.offset);
        before.iter().chain(&rest[self.length..]).all(|&byte| byte == 0xA5)
    }
}

/// The result of the portable version, in new memory.
fn portable(case: &Case) -> Vec<u8> {
    fn reduce_portable<T: Number>(op: ReduceOp, job: &ReduceJob<'_>) {
        // SAFETY: the sources are vectors of `bytes` bytes each, as is the target, which is none of them.
        #[expect(unsafe_code, reason = "calls the kernel that this processor would not choose")]
        unsafe {
            match op {
                ReduceOp::Sum | ReduceOp::Mean => kernel::reduce_plain::<T, Sum>(job),
                ReduceOp::Product => kernel::reduce_plain::<T, Product>(job),
                ReduceOp::Max => kernel::reduce_plain::<T, Largest>(job),
                ReduceOp::Min => kernel::reduce_plain::<T, Smallest>(job),
            }
        }
    }
    let mut target = vec![0; case.ranks[0].len()];
    let sources: Vec<*const u8> = case.ranks.iter().map(|rank| rank.as_ptr()).collect();
    let divisor = case.finish.filter(|_| case.op == ReduceOp::Mean);
    let job = ReduceJob { target: target.as_mut_ptr(), sources: &sources, bytes: target.len(), divisor };
    match case.data_type {
        DataType::None => {}
        DataType::F16 => reduce_portable::<f16>(case.op, &job),
        DataType::Bf16 => reduce_portable::<bf16>(case.op, &job),
        DataType::F32 => reduce_portable::<f32>(case.op, &job),
        DataType::F64 => reduce_portable::<f64>(case.op, &job),
        DataType::I32 => reduce_portable::<i32>(case.op, &job),
        DataType::I64 => reduce_portable::<i64>(case.op, &job),
        DataType::U8 => reduce_portable::<u8>(case.op, &job),
    }
    target
}

proptest! {
    // Miri is slow.
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 1500 }, ..ProptestConfig::default() })]

    #[test]
    fn reduce_of_any_alignment_matches_plain_arithmetic(case in case()) {
        let kind = (case.data_type, case.op);
        let expected = bits(case.data_type, &expected(case.data_type, case.op, &case.ranks, case.finish));

        let placed: Vec<Placed> = case.ranks.iter().zip(&case.offsets).map(|(rank, &at)| Placed::new(rank, at)).collect();
        let sources: Vec<&[u8]> = placed.iter().map(Placed::get).collect();
        let mut target = Placed::new(&vec![0; sources[0].len()], case.offsets[case.ranks.len()]);
        reduce_into(kind, target.get_mut(), &sources, case.finish);
        prop_assert_eq!(&bits(case.data_type, target.get()), &expected, "into other memory");
        prop_assert!(target.is_untouched_around());

        let mut first = Placed::new(&case.ranks[0], case.offsets[0]);
        fold(kind, first.get_mut(), &sources[1..], case.finish);
        prop_assert_eq!(&bits(case.data_type, first.get()), &expected, "in place");
        prop_assert!(first.is_untouched_around());

        prop_assert_eq!(&bits(case.data_type, &portable(&case)), &expected, "on any processor");
    }

    #[test]
    fn f16_and_bf16_rounding_matches_half_crate(value in any::<u32>().prop_map(f32::from_bits)) {
        let rounded = convert_portable(value);
        prop_assert_eq!(rounded, [f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()]);
    }
}

/// A value as `f16` and `bf16`, by the portable code.
fn convert_portable(value: f32) -> [u16; 2] {
    use super::number::{LANES, Portable};
    let block = [value; LANES];
    [f16::narrow::<Portable>(block)[LANES - 1].to_bits(), bf16::narrow::<Portable>(block)[0].to_bits()]
}

#[test]
fn f16_round_trips_through_f32() {
    use super::number::{LANES, Portable};
    for first in (0..=u16::MAX).step_by(LANES) {
        let block: [f16; LANES] = std::array::from_fn(|lane| f16::from_bits(first + lane as u16));
        let wide = f16::widen::<Portable>(block);
        for (short, wide) in block.into_iter().zip(wide) {
            assert!(wide == short.to_f32() || short.is_nan() && wide.is_nan(), "{short:?}");
        }
        for (short, back) in block.into_iter().zip(f16::narrow::<Portable>(wide)) {
            assert!(back == short || short.is_nan() && back.is_nan(), "{short:?}");
            assert_eq!(back.is_sign_negative(), short.is_sign_negative(), "{short:?}");
        }
    }
}

#[test]
fn f16_and_bf16_rounding_is_correct_at_boundaries() {
    // Next to each value of the short type, and next to the middle between two of them.
    for short in 0..=u16::MAX {
        for base in [f16::from_bits(short).to_f32().to_bits(), u32::from(short) << 16] {
            for bits in [0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, u32::MAX] {
                let value = f32::from_bits(base.wrapping_add(bits));
                let rounded = [f16::from_f32(value).to_bits(), bf16::from_f32(value).to_bits()];
                assert_eq!(convert_portable(value), rounded, "{value:e}");
            }
        }
    }
}

#[test]
fn u8_mean_wraps_before_division() {
    // 300 ranks give 1: 300 is 44 as a byte. A byte holds no 300, so any sum divided by it is 0.
    let rank = [1u8; 3];
    let mut target = rank;
    ReduceOp::Mean.fold(&mut target, &[rank.as_slice(); 299]);
    assert_eq!(target, [0; 3]);
    let mut target = [200u8, 10, 255];
    ReduceOp::Mean.fold(&mut target, &[&[100, 20, 255]]);
    // 300 and 510 are 44 and 254 as bytes.
    assert_eq!(target, [22, 15, 127]);
}

#[test]
fn f16_sum_is_rounded_once() {
    // 2048 and 1 is 2048 in f16; twice 1, summed first, counts.
    let (mut target, one) = ([f16::from_f32(2048.0)], [f16::ONE]);
    ReduceOp::Sum.fold(&mut target, &[&one, &one]);
    assert_eq!(target, [f16::from_f32(2050.0)]);
}

#[test]
#[should_panic(expected = "all ranks give equally much")]
fn source_lengths_differing_panics() {
    fold((DataType::U8, ReduceOp::Sum), as_bytes_mut(&mut [1u8, 2]), &[&[1]], None);
}
