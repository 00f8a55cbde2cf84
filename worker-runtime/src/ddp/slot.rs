//! The memory of a bucket, which is here or on its way.

use rankrun_contract::rank::Rank;

use super::error::DdpError;
use crate::process_group::{Buffer, Collective, DataType, Queue, Reduction, Work};

/// Where the memory of a bucket is.
#[derive(Debug)]
pub(super) enum Slot {
    /// Here, to be read and written.
    Here(Buffer<u8>),
    /// With a call that was started.
    Away(Work<Buffer<u8>>),
    /// Lost with a call that failed.
    Lost,
}

impl Slot {
    pub(super) fn bytes(&self) -> Result<&[u8], DdpError> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(_) | Self::Lost => Err(DdpError::Ended),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> Result<&mut [u8], DdpError> {
        match self {
            Self::Here(buffer) => Ok(buffer),
            Self::Away(_) | Self::Lost => Err(DdpError::Ended),
        }
    }

    /// Starts the mean of this bucket over all ranks.
    pub(super) fn all_reduce(&mut self, queue: &Queue, data_type: DataType) -> Result<(), DdpError> {
        let mut buffer = self.take()?;
        *self = Self::Away(queue.start(move |group| {
            let work = Collective::AllReduce { data: &mut buffer[..], how: Reduction::Mean };
            group.run(data_type, work).map(|()| buffer)
        }));
        Ok(())
    }

    /// Starts to make this bucket what it is on one rank.
    pub(super) fn broadcast(
        &mut self,
        queue: &Queue,
        data_type: DataType,
        root: Rank,
    ) -> Result<(), DdpError> {
        let mut buffer = self.take()?;
        *self = Self::Away(queue.start(move |group| {
            let work = Collective::Broadcast { data: &mut buffer[..], root };
            group.run(data_type, work).map(|()| buffer)
        }));
        Ok(())
    }

    /// Waits for what was started, if anything was.
    pub(super) fn wait(&mut self) -> Result<(), DdpError> {
        *self = match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => Self::Here(buffer),
            Self::Away(work) => Self::Here(work.wait()?),
            Self::Lost => return Err(DdpError::Ended),
        };
        Ok(())
    }

    fn take(&mut self) -> Result<Buffer<u8>, DdpError> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => Ok(buffer),
            other => {
                *self = other;
                Err(DdpError::Ended)
            }
        }
    }
}
