// Gives the C# examples of the pages their batches: sixteen rows of images.bin and labels.bin at a time, five passes
// over the data.
using System;
using System.IO;

static class Data
{
    const int Rounds = 5;
    static readonly byte[] AllImages = File.ReadAllBytes("images.bin");
    static readonly byte[] AllLabels = File.ReadAllBytes("labels.bin");
    static int next;

    public static bool NextBatch(float[] images, long[] labels)
    {
        int imageBytes = images.Length * sizeof(float), labelBytes = labels.Length * sizeof(long);
        int batches = AllLabels.Length / labelBytes;
        if (next == Rounds * batches) return false;
        int batch = next++ % batches;
        Buffer.BlockCopy(AllImages, batch * imageBytes, images, 0, imageBytes);
        Buffer.BlockCopy(AllLabels, batch * labelBytes, labels, 0, labelBytes);
        return true;
    }
}
