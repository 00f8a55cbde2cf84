//! Kernels whose parameters are declared once, so that each launch is checked by the compiler.
#![expect(unsafe_code, reason = "launches kernels for which a declaration vouches")]

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{
    CudaFunction, CudaModule, CudaStream, CudaView, CudaViewMut, DeviceSlice, LaunchArgs, LaunchConfig,
    PushKernelArg,
};

use super::{CudaError, DeviceNumber};

/// Threads of a block. A kernel takes at most 255 registers per thread of the 65,536 of
/// a block, so any kernel fits.
const BLOCK: usize = 256;

/// Compiled kernels on a device; [`CudaDevice::compile`](super::CudaDevice::compile) makes them.
///
/// ```no_run
/// use rankrun_worker::cuda::{CudaDevice, CudaError, Kernel, Slice, SliceMut};
///
/// const ADD: &str = r#"
/// extern "C" __global__ void add(float *sums, long long length, const float *more, long long more_length, float scale)
/// {
///     long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
///     if (at < length && at < more_length) {
///         sums[at] += scale * more[at];
///     }
/// }
/// "#;
///
/// fn main() -> Result<(), CudaError> {
///     let device = CudaDevice::open(0)?;
///     let kernels = device.compile(ADD)?;
///     // SAFETY: these are its parameters, and it keeps within the lengths of both slices.
///     let add: Kernel<(SliceMut<f32>, Slice<f32>, f32)> = unsafe { kernels.declare("add")? };
///
///     let (mut sums, more) = (device.upload(&[1.0f32, 2.0])?, device.upload(&[10.0f32, 20.0])?);
///     add.launch(sums.len(), (sums.as_view_mut(), more.as_view(), 0.5))?;
///     assert_eq!(device.read_all(&sums)?, [6.0, 12.0]);
///     Ok(())
/// }
/// ```
pub struct Kernels {
    module: Arc<CudaModule>,
    stream: Arc<CudaStream>,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels on cuda:{}", self.stream.context().ordinal())
    }
}

impl Kernels {
    pub(super) fn new(module: Arc<CudaModule>, stream: Arc<CudaStream>) -> Self {
        Self { module, stream }
    }

    /// Looks up an `extern "C" __global__` function and declares its parameters, as `unsafe extern` does for a
    /// function in C.
    ///
    /// # Safety
    /// The function has these parameters, in this order. It keeps within the lengths of its slices, for any arguments and any
    /// number of threads, and writes to no [`Slice`].
    ///
    /// # Errors
    /// There is no such function.
    pub unsafe fn declare<P: Parameters>(&self, name: &str) -> Result<Kernel<P>, CudaError> {
        let function = self.module.load_function(name)?;
        Ok(Kernel { function, stream: Arc::clone(&self.stream), parameters: PhantomData })
    }
}

/// A kernel with the parameters `P`.
pub struct Kernel<P> {
    function: CudaFunction,
    stream: Arc<CudaStream>,
    parameters: PhantomData<fn(P)>,
}

impl<P> fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a kernel on cuda:{}", self.stream.context().ordinal())
    }
}

impl<P: Parameters> Kernel<P> {
    /// Starts at least `threads` threads, in blocks of 256 along x, and does not wait for their end. They run behind
    /// the device's work so far. With 0 threads nothing happens.
    ///
    /// # Errors
    /// A slice is on another device, there are too many threads, or the device failed: an error of the kernel itself
    /// is the result of a later call.
    pub fn launch(&self, threads: usize, arguments: P::Arguments<'_>) -> Result<(), CudaError> {
        let mut arguments = P::prepare(arguments, &self.stream)?;
        if threads == 0 {
            return Ok(());
        }
        let blocks = u32::try_from(threads.div_ceil(BLOCK)).unwrap_or(u32::MAX);
        let size =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (BLOCK as u32, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.function);
        P::push(&mut arguments, &mut launch);
        // SAFETY: `declare` was promised that these are its parameters, and that it keeps within the slices, which are
        // borrowed here and whose memory cudarc frees behind this work.
        unsafe { launch.launch(size) }?;
        Ok(())
    }
}

/// Memory that a kernel reads. In C it is two parameters: `const T *` and its length in numbers, `long long`.
#[derive(Debug)]
pub struct Slice<T>(PhantomData<T>);

/// Memory that a kernel reads and writes. In C it is two parameters: `T *` and its length in numbers, `long long`.
#[derive(Debug)]
pub struct SliceMut<T>(PhantomData<T>);

/// The parameters of a kernel: [`Slice`], [`SliceMut`], a number, or a tuple of up to eight of these.
pub trait Parameters {
    /// The arguments of a launch: a [`CudaView`] for a [`Slice`], a [`CudaViewMut`] for a [`SliceMut`], a number for a
    /// number, and a tuple for a tuple.
    type Arguments<'a>;
    /// The arguments at the place from which the driver reads them.
    #[doc(hidden)]
    type Prepared<'a>;

    /// Checks the arguments.
    #[doc(hidden)]
    fn prepare<'a>(
        arguments: Self::Arguments<'a>,
        stream: &CudaStream,
    ) -> Result<Self::Prepared<'a>, CudaError>;

    /// Adds the arguments to a launch.
    #[doc(hidden)]
    fn push<'a, 'b: 'a>(prepared: &'a mut Self::Prepared<'b>, launch: &mut LaunchArgs<'a>);
}

macro_rules! slices {
    ($($slice:ident: $view:ident, ($($borrow:tt)+);)*) => {$(
        impl<T: DeviceNumber> Parameters for $slice<T> {
            type Arguments<'a> = $view<'a, T>;
            type Prepared<'a> = ($view<'a, T>, i64);

            fn prepare<'a>(
                view: Self::Arguments<'a>,
                stream: &CudaStream,
            ) -> Result<Self::Prepared<'a>, CudaError> {
                let (kernel, argument) = (stream.context().ordinal(), view.stream().context().ordinal());
                if kernel != argument {
                    return Err(CudaError::OtherDevice { kernel, argument });
                }
                // No memory has more bytes.
                let length = i64::try_from(view.len()).unwrap_or(i64::MAX);
                Ok((view, length))
            }

            fn push<'a, 'b: 'a>((view, length): &'a mut Self::Prepared<'b>, launch: &mut LaunchArgs<'a>) {
                launch.arg($($borrow)+ *view).arg(&*length);
            }
        }
    )*};
}

slices! {
    Slice: CudaView, (&);
    SliceMut: CudaViewMut, (&mut);
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Parameters for $number {
            type Arguments<'a> = Self;
            type Prepared<'a> = Self;

            fn prepare<'a>(
                number: Self::Arguments<'a>,
                _: &CudaStream,
            ) -> Result<Self::Prepared<'a>, CudaError> {
                Ok(number)
            }

            fn push<'a, 'b: 'a>(number: &'a mut Self::Prepared<'b>, launch: &mut LaunchArgs<'a>) {
                launch.arg(&*number);
            }
        }
    )*};
}

numbers!(i32, i64, u32, u64, f32, f64);

macro_rules! tuples {
    ($($parameter:ident)*) => {
        impl<$($parameter: Parameters),*> Parameters for ($($parameter,)*) {
            type Arguments<'a> = ($($parameter::Arguments<'a>,)*);
            type Prepared<'a> = ($($parameter::Prepared<'a>,)*);

            #[expect(non_snake_case, reason = "a variable for each parameter has the name of its type")]
            fn prepare<'a>(
                ($($parameter,)*): Self::Arguments<'a>,
                stream: &CudaStream,
            ) -> Result<Self::Prepared<'a>, CudaError> {
                Ok(($($parameter::prepare($parameter, stream)?,)*))
            }

            #[expect(non_snake_case, reason = "as above")]
            fn push<'a, 'b: 'a>(
                ($($parameter,)*): &'a mut Self::Prepared<'b>,
                launch: &mut LaunchArgs<'a>,
            ) {
                $($parameter::push($parameter, launch);)*
            }
        }
    };
}

tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
