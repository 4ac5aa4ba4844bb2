namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Process-wide settings of training.</summary>
    public static class TrainingUtils
    {
        /// <summary>Sets the process-wide random seed.</summary>
        /// <remarks>
        /// Sessions created afterwards draw the same random numbers in every run with this seed. With the same number
        /// of threads whole training runs are reproducible bit for bit.
        /// </remarks>
        /// <param name="seed">Any number.</param>
        public static void SetSeed(long seed)
        {
            NativeStatus.ThrowOnError(OrtTrainingApi.SetSeed(seed));
        }
    }
}
