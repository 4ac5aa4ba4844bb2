namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Settings of training for the whole process.</summary>
    public static class TrainingUtils
    {
        /// <summary>Sets the seed of all random numbers of the process.</summary>
        /// <remarks>
        /// Sessions made afterwards draw the same numbers in every run with this seed. With the same number
        /// of threads whole training runs are repeatable bit by bit.
        /// </remarks>
        /// <param name="seed">Any number.</param>
        public static void SetSeed(long seed)
        {
            NativeStatus.ThrowOnError(OrtTrainingApi.SetSeed(seed));
        }
    }
}
